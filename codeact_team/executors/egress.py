"""What the code of an executor may reach of the network, and the way there while its sandbox runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from codeact_team.core.aio import to_the_end
from codeact_team.core.network_events import RequestDenied
from codeact_team.errors import SandboxError
from codeact_team.executors.settings import ExecutorConfig
from codeact_team.network.inside.first_line import PROXY
from codeact_team.network.rules import EgressRules
from codeact_team.network.variables import variables
from codeact_team.network.way import EgressPolicy, Way
from codeact_team.sandbox.base import WAY_OUT, WayOut
from codeact_team.tools.approvals import Pause

_pause: ContextVar[Pause] = ContextVar("codeact_team_pause", default=nullcontext)
"""Makes a context manager within which the time of the code that runs here stands still."""

_BUNDLE = "certificates.pem"
_CERTIFI = "site-packages/certifi/cacert.pem"
"""What certifi names to its users, in a layer of packages."""
_SYSTEM_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"


class Egress:
    """The way out for the code of an executor.

    Args:
        config: The settings of the executor, which have ``egress``.

    Attributes:
        policy: What may be reached, with what was counted and what persons have said so far.
    """

    def __init__(self, config: ExecutorConfig) -> None:
        self._config = config
        self.policy: EgressPolicy = EgressPolicy(config.egress_rules())
        self._way: Way | None = None
        self.part: object = None
        """The executor, of which requests are effects."""

    @property
    def rules(self) -> EgressRules:
        """The rules."""
        return self.policy.rules

    async def open(self, packages: Path | None = None) -> WayOut:
        """Open the way for a sandbox that starts next, with a layer of packages. Raises a ``SandboxError``."""
        # few sandboxes have one, and what is imported with it takes a while
        from codeact_team.network.gateway import close_way, open_way

        await self.close()
        try:
            way = await open_way(self.policy, self._credentials(), extra_ca=self._extra_ca())
            try:
                way_out = await asyncio.to_thread(self._way_out, way, packages)
            except BaseException:
                await to_the_end(close_way(way))
                raise
        except OSError as error:
            raise SandboxError(
                f"the socket of `egress`, or what belongs to it, cannot be made: {error}"
            ) from error
        self._way = way
        return way_out

    def _extra_ca(self) -> Sequence[Path]:
        return [Path(path).expanduser() for path in self._config.extra_ca]

    def _credentials(self) -> Sequence[Mapping[str, Any]]:
        from codeact_team.network.secrets import with_values

        values = {
            one.name: os.environ[one.name] for one in self._config.credentials if one.name in os.environ
        }
        return with_values(self._config.credentials, values)

    def _way_out(self, way: Way, packages: Path | None) -> WayOut:
        files: dict[str, Path] = {}
        of_packages: dict[str, Path] = {}
        bundle: str | None = None
        if self.rules.opens_any:
            file = way.directory / _BUNDLE
            file.write_text(f"{way.opened.trusted}\n{way.certificate}")
            bundle = f"{WAY_OUT}/{_BUNDLE}"
            files[_SYSTEM_BUNDLE] = file
            if packages is not None and (packages / _CERTIFI).is_file():
                of_packages[_CERTIFI] = file
        addresses = [PROXY]
        for name, address in way.hosts.items():
            addresses += [(address, port) for port in self.rules.exact_names[name]]
        return WayOut(
            way.directory,
            way.opened.token,
            addresses,
            hosts=way.hosts,
            environment={**variables(bundle), **way.placeholders},
            files=files,
            of_packages=of_packages,
        )

    async def close(self) -> None:
        """Close the way, with all connections, when its sandbox has ended. Idempotent."""
        way, self._way = self._way, None
        if way is not None:
            from codeact_team.network.gateway import close_way

            await close_way(way)

    def take_over(self, other: Egress) -> None:
        """Take the way of a sandbox that was started for another executor with the same settings."""
        self._way, other._way = other._way, None
        if self._way is not None:
            self._way.policy = self.policy

    def begin(self, unit: str) -> None:
        """Have the requests of a process be effects of the present context."""
        if self._way is not None:
            self._way.begin(unit, self.part, pause=_pause.get())

    def end(self, unit: str) -> None:
        """Have the requests of a process be nobody's effects any more."""
        if self._way is not None:
            self._way.end(unit)

    @asynccontextmanager
    async def performing(self, unit: str | None, pause: Pause) -> AsyncGenerator[None, None]:
        """Within it, code runs, in the interpreter of a unit or as a process that begins here."""
        token = _pause.set(pause)
        try:
            if unit is None or self._way is None:
                yield
            else:
                async with self._way.performing(unit, self.part, pause=pause):
                    yield
        finally:
            _pause.reset(token)

    def take_denials(self) -> Sequence[RequestDenied]:
        """Return what was denied since the last call of this, each once."""
        return self.policy.take_denials()
