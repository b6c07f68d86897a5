"""A confined process of this machine as a sandbox."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import util
from pathlib import Path
from typing import Literal

from codeact_team.aio import to_the_end
from codeact_team.errors import ConfinementError, SandboxError, SettingError
from codeact_team.sandboxes.base import Process, Sandbox
from codeact_team.sandboxes.confined.access import readable_paths
from codeact_team.sandboxes.confined.control import SEARCH_PATH, Control
from codeact_team.sandboxes.confined.enforcement import Enforced, judge, read_probe, something_outside
from codeact_team.sandboxes.confined.process import ConfinedProcess
from codeact_team.sandboxes.limits import Cause, Limits

Confinement = Literal["required", "best_effort"]

_KILL_TIMEOUT = 1.0
"""Seconds that killed programs get to end; where they need longer, the supervising process is killed."""

# by what a probe depends on: an interpreter's start is a good part of the time that a sandbox's start takes
_found: dict[tuple[object, ...], frozenset[Enforced]] = {}


class ConfinedSandbox(Sandbox):
    """Programs of this machine that the kernel confines: no network, no files but their own, no rights.

    They run as the user of this process. A program's end is the end of everything that it has started. A supervising
    process is between them and this one: it ends everything when this process ends, however it does.

    Args:
        workspace: An existing directory of the host, which the code may write.
        confinement: Whether it must be enforced that only the interpreter, the system's libraries and the workspace are
            read, only the workspace is written, and no network is reached; or ``best_effort``.
        memory_mib: Private memory that may be reserved, in MiB. Copies that forked processes make are not counted.
        pids: How many processes may run at a time.
        readable: Further paths of the host that may be read.
        environment: Environment variables beside those that are always set.
    """

    def __init__(
        self,
        *,
        workspace: Path,
        confinement: Confinement = "required",
        memory_mib: int = 1024,
        pids: int = 64,
        readable: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        if memory_mib < 1 or pids < 1:
            raise SettingError(f"memory_mib ({memory_mib}) and pids ({pids}) must be 1 or more")
        self._workspace = workspace
        self._confinement: Confinement = confinement
        self._memory_mib = memory_mib
        self._pids = pids
        self._readable = tuple(readable)
        self._environment = dict(environment or {})
        self._paths: list[str] = []
        self._private = ""
        self._control: Control | None = None
        self._process: ConfinedProcess | None = None
        self._enforced: frozenset[Enforced] = frozenset()
        self._own_processes = False
        """Whether the programs see no other processes than their own."""

    @property
    def running(self) -> bool:
        return self._control is not None and self._control.alive

    @property
    def enforced(self) -> frozenset[Enforced]:
        """What is enforced, by trial; empty before the first start."""
        return self._enforced

    @property
    def python(self) -> str:
        """The interpreter that the code finds: this process's own, with its packages."""
        return sys.executable

    @property
    def limits(self) -> Limits:
        limits = {
            Enforced.READS: (
                Cause.FILES,
                f"readable: {list(self._readable)}, work_dir: {self._workspace}",
            ),
            Enforced.WRITES: (Cause.READ_ONLY, f"work_dir: {self._workspace}"),
            Enforced.NETWORK: (Cause.NETWORK, "network: none, as the code runs confined"),
            Enforced.MEMORY: (Cause.MEMORY, f"memory_mib: {self._memory_mib}"),
            Enforced.PROCESSES: (Cause.PROCESSES, f"pids: {self._pids}"),
        }
        return dict(limit for what, limit in limits.items() if what in self._enforced)

    async def start(self) -> None:
        if self.running:
            return
        await self.stop()
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        await to_the_end(self._stop())

    async def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, supervises: bool = False
    ) -> Process:
        if self._control is None or not self._control.alive:
            raise ConfinementError("The sandbox is not running: start it first.")
        if self._process is not None and not self._process.ended:
            raise SandboxError("Something still runs in the sandbox: one program at a time.")
        self._process = process = ConfinedProcess()
        environment = {**self._base_environment(), **self._environment, **(env or {})}
        paths = self._paths
        if supervises and self._own_processes:
            paths = [*paths, "/proc"]
        message = {"do": "spawn", "argv": list(argv), "env": environment, "readable": paths}
        try:
            self._control.send(message, process.inner_fds)
        except ConfinementError:
            await process.aclose()
            raise
        finally:
            process.close_inner()
        return process

    async def interrupt(self) -> None:
        self._tell("interrupt")

    async def kill(self) -> None:
        process = self._process
        if process is None or process.ended:
            return
        self._tell("kill")
        try:
            async with asyncio.timeout(_KILL_TIMEOUT):
                await process.wait()
        except TimeoutError:
            if self._control is not None:
                self._control.kill()

    def _tell(self, what: str) -> None:
        if self._control is not None:
            # if the supervising process is gone, everything is that it has started
            with suppress(ConfinementError):
                self._control.send({"do": what})

    async def _start(self) -> None:
        self._control = control = self._launch()
        reasons = await control.answer()
        self._own_processes = reasons.get("namespaces", "") is None
        self._enforced = await self._find_enforced(reasons)
        judge(self._enforced, reasons, required=self._confinement == "required")

    def _launch(self) -> Control:
        self._paths = readable_paths(self._readable)
        workspace = self._workspace.resolve()
        if not workspace.is_dir() or not os.access(workspace, os.W_OK):
            raise ConfinementError(f"The work_dir {str(workspace)!r} is not a directory that can be written.")
        self._private = os.path.realpath(tempfile.mkdtemp(prefix="codeact-"))
        return Control(
            {
                "workspace": str(workspace),
                "private": self._private,
                "memory_mib": self._memory_mib,
                "pids": self._pids,
                "sandlock": _path_of("sandlock"),
            }
        )

    async def _find_enforced(self, reasons: Mapping[str, str | None]) -> frozenset[Enforced]:
        key = (*reasons.items(), *self._paths, sys.executable)
        if key not in _found:
            with something_outside(self._workspace, *self._readable) as outside:
                process = await self.spawn([sys.executable, "-I", "-S", "-", str(outside), str(os.getpid())])
                try:
                    _found[key] = await read_probe(process)
                finally:
                    await process.aclose()
        enforced = set(_found[key])
        if sys.platform == "linux":
            enforced.add(Enforced.MEMORY)
        if reasons["sandlock"] is None:
            enforced.add(Enforced.PROCESSES)
        return frozenset(enforced)

    def _base_environment(self) -> dict[str, str]:
        return {
            "PATH": f"{os.path.dirname(sys.executable)}:{SEARCH_PATH}",
            # programs that leave things at home do not leave them in the workspace
            "HOME": self._private,
            "TMPDIR": self._private,
            "USER": "sandbox",
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            # git does not go on without its configuration, and one in /etc cannot be read
            "GIT_CONFIG_NOSYSTEM": "1",
        }

    async def _stop(self) -> None:
        control, private = self._control, self._private
        self._control, self._private = None, ""
        if control is not None:
            await control.close()
        if self._process is not None and self._process.ended:
            self._process = None
        if private and os.access(private, os.F_OK):
            # the supervising process has removed it, unless it was killed
            await asyncio.to_thread(shutil.rmtree, private, ignore_errors=True)


def _path_of(module: str) -> str | None:
    """The directory to import ``module`` from, if it is installed."""
    spec = util.find_spec(module)
    return None if spec is None or spec.origin is None else os.path.dirname(os.path.dirname(spec.origin))
