"""The host's end of the supervising process: starts it, tells it what to do, and sees it end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from codeact_team.errors import ConfinementError
from codeact_team.sandboxes.base import LoadedAhead
from codeact_team.sandboxes.confined.template import End, Fork
from codeact_team.sandboxes.readiness import readable

_START_TIMEOUT = 20.0
"""Seconds for an interpreter to start; a loaded machine needs a few."""
_STOP_TIMEOUT = 10.0
"""Seconds to end what runs and to remove temporary files."""
_MAX_ANSWER = 1 << 16
_GROUP = " control group"


class Control:
    """A started supervising process, see ``supervisor/supervision.py``, with what it needs to know first.

    Args:
        settings: What confines.
        program: What it is to have loaded, if anything.

    Raises:
        ConfinementError: If it cannot be started.
    """

    def __init__(self, settings: Mapping[str, Any], program: LoadedAhead | None = None) -> None:
        self.reasons: dict[str, str | None] = {}
        """Why something that confines cannot be had, or ``None``, by its name; empty until it has answered."""
        self.is_by_kernel = False
        """Whether the kernel alone confines, so that a fork of the process can be confined."""
        self._end, theirs = End.pair()
        self._killed = False
        try:
            with theirs:
                self._fork = Fork(settings, theirs, program)
        except OSError as error:
            self._end.close()
            raise ConfinementError(f"The supervising process cannot be started: {error}") from error

    @property
    def alive(self) -> bool:
        """Whether the process runs. Where it is killed, one that it has forked may hold the socket for a moment."""
        return not self._killed and not self._end.is_closed_there

    def send(self, message: Mapping[str, Any], fds: Sequence[int] = ()) -> None:
        """Send a message, and descriptors with it, or raise a ConfinementError."""
        try:
            self._end.tell(message, fds)
        except OSError as error:
            raise ConfinementError(f"The supervising process is gone: {error}") from error

    async def greet(self) -> None:
        """Wait until it is ready, or raise a ConfinementError."""
        answer = b""
        try:
            async with asyncio.timeout(_START_TIMEOUT):
                while not answer.endswith(b"\n"):
                    await readable(self._end.fileno())
                    if not (data := self._end.recv(_MAX_ANSWER)):
                        raise ConfinementError("The supervising process ended at its start.")
                    answer += data
        except ConnectionError as error:
            raise ConfinementError(f"The supervising process ended at its start: {error}") from error
        except TimeoutError:
            raise ConfinementError(
                f"The supervising process did not start within {_START_TIMEOUT:g} s."
            ) from None
        said = json.loads(answer)
        if "failed" in said:
            raise ConfinementError(f"The supervising process failed at its start: {said['failed']}")
        self.reasons, self.is_by_kernel = said["reasons"], said["by_kernel"]

    @property
    def has_namespaces(self) -> bool:
        """Whether programs see no processes but their own, and have their temporary files in memory."""
        return self.reasons.get("namespaces", "") is None

    @property
    def ungrouped(self) -> Mapping[str, str]:
        """Why a controller of control groups cannot be had, by its name."""
        return {
            name.removesuffix(_GROUP): reason
            for name, reason in self.reasons.items()
            if reason is not None and name.endswith(_GROUP)
        }

    def kill(self) -> None:
        """End the process by force; the program that it runs ends with it."""
        self._killed = True
        self._fork.kill()

    async def close(self) -> None:
        """Let the process end all that it has started, and itself."""
        try:
            async with asyncio.timeout(_STOP_TIMEOUT):
                await self._end.finish()
        except TimeoutError:
            self.kill()
        await self._fork.close()
        self._end.close()
