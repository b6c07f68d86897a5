"""A confined process of this machine as a sandbox."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import platform
import stat
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from codeact_team.core.aio import Turns, to_the_end
from codeact_team.core.files import KnownDirectory, known_directory, open_named
from codeact_team.core.trees import DIRECTORY
from codeact_team.errors import ConfinementError, SandboxError
from codeact_team.sandbox.base import (
    STARTS_AT_ONCE,
    STOPPED,
    UNCLEARED,
    Cause,
    Exit,
    Limits,
    LoadedAhead,
    Process,
    Sandbox,
    python_path,
)
from codeact_team.sandbox.confined.config import ConfinedSandboxConfig, readable_paths
from codeact_team.sandbox.confined.enforcement import Enforced, judge, read_probe, something_outside
from codeact_team.sandbox.confined.template import SEARCH_PATH, Control
from codeact_team.sandbox.readiness import Readiness, writable
from codeact_team.sandbox.temporary import TemporaryDirectory

_CHUNK = 1 << 16
_KILLED = 128 + 9


class ConfinedProcess(Process):
    """A program whose end the supervisor reports through a pipe, after it has ended all that the program forked.

    That pipe stays open until then, also for the sandbox, which must know whether something runs.
    """

    def __init__(self) -> None:
        stdin, self._stdin = os.pipe()
        self._output, output = os.pipe()
        self._status, status = os.pipe()
        self.inner_fds = [stdin, output, status]
        """The ends that belong to the program and its supervisor, until they are handed over."""
        for fd in (self._stdin, self._output, self._status):
            os.set_blocking(fd, False)
        self._open = {self._stdin, self._output, self._status}
        self._both = Readiness(self._output, self._status)
        self._end = Readiness(self._status)
        self._exit: Exit | None = None
        self.lost = "its supervising process was killed"
        """What it means if that pipe closes without a word."""
        self.is_orphaned = False
        """Whether it has done so."""

    @property
    def ended(self) -> bool:
        """Whether the program, and all that it has forked, has ended."""
        if self._exit is None and self._status in self._open:
            try:
                said = os.read(self._status, _CHUNK)
            except BlockingIOError:
                return False
            self._exit = self._parse_exit(said)
            self._both.close()
            self._end.close()
            self._close(self._status)
        return self._exit is not None

    async def read(self) -> bytes:
        while True:
            if data := self._read_now():
                return data
            if self.ended:
                # what the program wrote before its end is in the pipe by then
                return self._read_now() or b""
            if data is None:
                await self._both.wait()
            else:
                # a pipe at its end can always be read
                self._both.close()
                await self._end.wait()

    def _read_now(self) -> bytes | None:
        """What is there; ``None`` if nothing is yet, and nothing if nothing will be."""
        if self._output not in self._open:
            return b""
        try:
            return os.read(self._output, _CHUNK)
        except BlockingIOError:
            return None

    async def write(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left and self._stdin in self._open:
                try:
                    left = left[os.write(self._stdin, left) :]
                except BlockingIOError:
                    await writable(self._stdin)
        except BrokenPipeError:
            # nobody is left to read it
            return

    async def close_stdin(self) -> None:
        self._close(self._stdin)

    async def wait(self) -> Exit:
        while not self.ended:
            await self._end.wait()
        assert self._exit is not None
        return self._exit

    async def aclose(self) -> None:
        self._both.close()
        self._end.close()
        self._close(self._stdin)
        self._close(self._output)

    def close_inner(self) -> None:
        """Close the ends that belong to the program, once the supervisor has them."""
        for fd in self.inner_fds:
            os.close(fd)
        self.inner_fds = []

    def _parse_exit(self, said: bytes) -> Exit:
        if not said:
            self.is_orphaned = True
            return Exit(_KILLED, lost=self.lost)
        how: dict[str, Any] = json.loads(said)
        if "failed" in how:
            return Exit(1, lost=f"the program could not be started: {how['failed']}")
        return Exit(
            how["code"],
            oom_kills=how.get("oom_kills"),
            fork_failures=how.get("fork_failures", 0),
            processor_seconds=how.get("processor_seconds"),
        )

    def _close(self, fd: int) -> None:
        if fd in self._open:
            self._open.remove(fd)
            os.close(fd)


logger = logging.getLogger(__name__)

_KILL_TIMEOUT = 1.0
"""Seconds that killed programs get to end; where they need longer, the supervising process is killed."""

_starts = Turns(STARTS_AT_ONCE)
# by what a probe depends on: an interpreter's start is a good part of the time that a sandbox's start takes
_found: dict[tuple[object, ...], frozenset[Enforced]] = {}


class ConfinedSandbox(Sandbox):
    """Programs of this machine that the kernel confines: no network, no files but their own, no rights.

    They run as the user of this process. A program's end is the end of everything that it has started. A supervising
    process is between them and this one: it ends everything when this process ends, however it does.

    Args:
        config: What is confined, and how far. The memory limit of a process, where there is no control group, is on
            its private memory, without the copies that forked processes make; in a control group there may be eight
            threads for each process. Where this machine forbids namespaces, the temporary directory is on the disk.
        workspace: An existing directory of the host, which the code may write.
        workspace_mib: How large a file may become, in MiB; ``None`` for no limit. How much the directories of the host
            may grow is for the caller to watch.
        packages: A layer of Python packages that the code may read; see :mod:`codeact_team.executors.packages`.
        program: What to have loaded ahead, if anything.
    """

    def __init__(
        self,
        config: ConfinedSandboxConfig,
        *,
        workspace: Path,
        workspace_mib: int | None = None,
        packages: Path | None = None,
        program: LoadedAhead | None = None,
    ) -> None:
        self._config = config
        self._program = program
        self._workspace = workspace
        """Without links, once it was opened."""
        self._workspace_mib = workspace_mib
        self._packages = packages
        self._paths: list[str] = []
        self._private: TemporaryDirectory | None = None
        self._control: Control | None = None
        self._process: ConfinedProcess | None = None
        self._is_used = True
        """Whether programs have run since the start, other than the probe."""
        self.enforced: frozenset[Enforced] = frozenset()
        """What is enforced, by trial; empty before the first start."""
        self.ungrouped: Mapping[str, str] = {}
        """Why a limit does not hold for all programs together, by what it limits: memory, pids, cpu."""

    @property
    def running(self) -> bool:
        # of a process that is killed, one descriptor is closed after the other
        is_orphaned = self._process is not None and self._process.ended and self._process.is_orphaned
        return self._control is not None and self._control.alive and not is_orphaned

    @property
    def private(self) -> str:
        assert self._private is not None, "it has started"
        # in namespaces a file system of its own, in memory
        return "/dev/shm" if self._has_namespaces else self._private.path

    @property
    def python(self) -> str:
        """The interpreter that the code finds: this process's own, with its packages."""
        return sys.executable

    @property
    def python_is_plain(self) -> bool:
        # one that was killed may have left something where Python looks for settings of its user
        if sys.platform != "linux" or self._is_used or self._config.environment or self._packages:
            return False
        workspace = self._workspace
        places = (sys.prefix, sys.base_prefix, *filter(None, sys.path))
        return not any(Path(place).resolve().is_relative_to(workspace) for place in places)

    @property
    def python_version(self) -> str:
        return platform.python_version()

    @property
    def limits(self) -> Limits:
        config = self._config
        each = " for each process" if "memory" in self.ungrouped else ""
        files = f"readable: {config.readable}, work_dir: {self._workspace}"
        by_kernel = {
            Enforced.READS: (Cause.FILES, files),
            Enforced.WRITES: (Cause.READ_ONLY, f"work_dir: {self._workspace}"),
            Enforced.NETWORK: (Cause.NETWORK, "network: none, as the code runs confined"),
            Enforced.MEMORY: (Cause.MEMORY, f"memory_mib: {config.memory_mib}{each}"),
            Enforced.PROCESSES: (Cause.PROCESSES, f"pids: {config.pids}"),
        }
        disk = f"tmpfs_mib: {config.tmpfs_mib}, workspace_mib: {self._workspace_mib}"
        unseen = {Cause.UNSEEN: files} if self._has_namespaces else {}
        limits = dict(limit for what, limit in by_kernel.items() if what in self.enforced)
        return {Cause.DISK: disk, **limits, **unseen}

    @property
    def directories(self) -> Sequence[Path]:
        # in namespaces, the other one is in memory, and has a size
        private = () if self._has_namespaces or self._private is None else (Path(self._private.path),)
        return (self._workspace, *private)

    @property
    def _has_namespaces(self) -> bool:
        return self._control is not None and self._control.has_namespaces

    async def stop(self) -> None:
        await to_the_end(self._stop())

    async def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, supervises: bool = False
    ) -> Process:
        self._check_idle()
        environment = {**self._base_environment(), **self._config.environment, **(env or {})}
        if self._packages is not None:
            environment |= python_path(str(self._packages), environment)
        # in namespaces, a program sees no other processes than its own
        seen = ["/proc"] if supervises and self._has_namespaces else []
        message = {"argv": list(argv), "env": environment, "readable": [*self._paths, *seen]}
        return await self._spawn({**message, "supervises": supervises})

    async def spawn_loaded(self) -> Process | None:
        is_loaded = self._program is not None and self._control is not None and self._control.is_by_kernel
        if not (is_loaded and self.python_is_plain):
            return None
        self._check_idle()
        message = {"argv": None, "env": self._base_environment(), "readable": self._paths}
        return await self._spawn({**message, "supervises": True})

    def _check_idle(self) -> None:
        if not self.running:
            raise ConfinementError("The sandbox is not running: start it first.")
        if self._process is not None and not self._process.ended:
            raise SandboxError("Something still runs in the sandbox: one program at a time.")

    async def _spawn(self, message: Mapping[str, Any]) -> Process:
        assert self._control is not None, "it is running"
        self._process = process = ConfinedProcess()
        self._is_used = True
        try:
            self._control.send({"do": "spawn", **message}, process.inner_fds)
        except ConfinementError:
            await process.aclose()
            raise
        finally:
            process.close_inner()
        return process

    async def python_identity(self) -> str:
        # a package that is installed or removed changes the directory
        found = map(os.stat, (sys.executable, sysconfig.get_path("purelib")))
        return f"{sys.executable} {[(each.st_ino, each.st_size, each.st_mtime_ns) for each in found]}"

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
            process.lost = UNCLEARED
            if self._control is not None:
                self._control.kill()

    def _tell(self, what: str) -> None:
        if self._control is not None:
            # if the supervising process is gone, everything is that it has started
            with suppress(ConfinementError):
                self._control.send({"do": what})

    async def _start(self) -> None:
        async with _starts:
            self._control = control = self._launch()
            await control.greet()
            self.ungrouped = control.ungrouped
            self.enforced = await self._find_enforced(control.reasons)
        judge(self.enforced, control.reasons, required=self._config.confinement == "required")
        self._is_used = False

    def _launch(self) -> Control:
        self._paths = readable_paths(self._config.readable)
        if self._packages is not None:
            self._paths.append(str(self._packages))
        # code may put a link in its place from now on: the supervising process looks whether it has the same
        found = _opened(self._workspace)
        self._workspace = found.path
        self._private = TemporaryDirectory()
        return Control(
            {
                "readable": self._paths,
                "workspace": str(self._workspace),
                "workspace_identity": found.identity,
                "private": self._private.path,
                "workspace_mib": self._workspace_mib,
                **self._config.model_dump(include={"memory_mib", "pids", "cpus", "tmpfs_mib"}),
            },
            self._program,
        )

    async def _find_enforced(self, reasons: Mapping[str, str | None]) -> frozenset[Enforced]:
        key = (*reasons.items(), *self._paths, sys.executable)
        if key not in _found:
            with something_outside(self._workspace, *self._config.readable) as outside:
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
        assert self._private is not None, "it has started"
        return {
            "PATH": f"{os.path.dirname(sys.executable)}:{SEARCH_PATH}",
            # programs that leave things at home do not leave them in the workspace
            "HOME": self._private.path,
            "TMPDIR": self._private.path,
            "USER": "sandbox",
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            # git does not go on without its configuration, and one in /etc cannot be read
            "GIT_CONFIG_NOSYSTEM": "1",
        }

    async def _stop(self) -> None:
        control, private = self._control, self._private
        self._control, self._private = None, None
        process, self._process = self._process, None
        if process is not None:
            process.lost = STOPPED
        if control is not None:
            await control.close()
        if private is not None:
            # its template has removed it, unless that was killed
            try:
                await asyncio.to_thread(private.remove)
            except OSError as error:
                logger.warning("temporary files left in %s: %s", private.path, error)


def _opened(workspace: Path) -> KnownDirectory:
    """The directory, if code can use it."""
    try:
        descriptor = open_named(workspace, DIRECTORY)
        try:
            found = known_directory(descriptor)
            can_write = os.access(".", os.W_OK, dir_fd=descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise ConfinementError(
            f"The work_dir {str(workspace)!r} cannot be opened: {error.strerror}"
        ) from error
    if not can_write:
        raise ConfinementError(f"The work_dir {str(workspace)!r} cannot be written.")
    status = found.status
    if os.geteuid() == 0 and status.st_uid != 0 and ~status.st_mode & stat.S_IRWXO:
        raise ConfinementError(
            f"The work_dir {str(workspace)!r} belongs to user {status.st_uid}, as those do that are made for a container, "
            "and code that root runs confined may not do what root may: name another `work_dir`, or give this one to root"
        )
    return found
