"""A confined process of this machine as a sandbox, and what the kernel really enforces there, found by trial."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import platform
import pwd
import socket
import sys
import sysconfig
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from enum import StrEnum
from pathlib import Path

from codeact_team.core.aio import FairLock, to_the_end
from codeact_team.errors import ConfinementError, SandboxError
from codeact_team.files.opening import KnownDirectory, known_directory, open_named, resolved
from codeact_team.files.trees import DIRECTORY
from codeact_team.sandbox.base import (
    BY_RULES,
    STARTS_AT_ONCE,
    STOPPED,
    UNCLEARED,
    WAY_OUT,
    Cause,
    Limits,
    Process,
    PythonIdentity,
    Sandbox,
    WayOut,
    ZygoteProgram,
    python_path,
    receiving,
    time_to_end,
    warn_once,
)
from codeact_team.sandbox.confined.config import ConfinedSandboxConfig, closed_to_others, readable_paths
from codeact_team.sandbox.confined.control import SEARCH_PATH, ConfinedProcess, SupervisingProcess
from codeact_team.sandbox.confined.protocol import Confinement, Message, SpawnRequest
from codeact_team.sandbox.temporary import TemporaryDirectory, places
from codeact_team.sandbox.users import USER_NAME


class Enforced(StrEnum):
    """A restriction that confinement can enforce."""

    READS = "reads"
    """Code can read only the interpreter, system libraries and the workspace, and nothing of the supervising process."""
    WRITES = "writes"
    """Code can change only the workspace and a temporary directory."""
    NETWORK = "network"
    """Code reaches nothing by sockets but its own processes."""
    OTHERS = "other processes"
    """Code can neither signal processes outside nor set their limits."""
    MODES = "set-id modes"
    """Code can create no files that run with the rights of their owner."""
    MEMORY = "memory"
    """Code can reserve only so much memory."""
    PROCESSES = "number of processes"
    """Code can have only so many processes."""


REQUIRED = frozenset({*Enforced} - {Enforced.MEMORY})
"""The restrictions that ``confinement: required`` needs."""

_AGAINST_NAMESPACES = {
    "user.max_user_namespaces": ("0", 10_000),
    # Debian's, and Ubuntu's
    "kernel.unprivileged_userns_clone": ("0", 1),
    "kernel.apparmor_restrict_unprivileged_userns": ("1", 0),
}
"""Settings of a machine, each with its value that forbids namespaces to all users but root, and with another one."""

_LONGEST_PLACE = 66
"""Bytes: the path of a socket in a directory below it must not be longer than about 104."""
_PROBE = Path(__file__).with_name("probe.py").read_bytes()


@contextmanager
def _probe_targets(*granted: Path | str) -> Generator[tuple[Path, int]]:
    """A directory outside ``granted`` that contains what the probe tries to reach, and a port of this machine."""
    inside = [resolved(path) for path in granted]
    for place in places():
        fits = len(os.fsencode(place)) <= _LONGEST_PLACE and os.access(place, os.W_OK)
        if fits and not any(place.is_relative_to(path) for path in inside):
            break
    else:
        raise ConfinementError(
            f"Confinement cannot be checked: no temporary directory is outside of {', '.join(map(str, granted))}. "
            "Choose a smaller work_dir."
        )
    with TemporaryDirectory(place) as outside:
        (outside / "secret").write_text("secret")
        with (
            closing(socket.socket(socket.AF_UNIX)) as named,
            closing(socket.socket(socket.AF_UNIX)) as abstract,
            _server() as port,
        ):
            named.bind(str(outside / "socket"))
            named.listen()
            if sys.platform == "linux":
                abstract.bind(f"\0{outside}")
                abstract.listen()
            yield outside, port


@contextmanager
def _server() -> Generator[int]:
    """A port of this machine's loopback that takes connections; 0 if this process may have none."""
    try:
        server = socket.create_server(("127.0.0.1", 0))
    except OSError:
        yield 0
        return
    with server:
        yield server.getsockname()[1]


async def _read_probe(process: Process) -> frozenset[Enforced]:
    """Run the probe as ``process``. Returns the enforced restrictions."""
    await process.write(_PROBE)
    await process.close_stdin()
    output = b""
    while chunk := await process.read():
        output += chunk
    exit = await process.wait()
    with suppress(ValueError):
        return frozenset(map(Enforced, json.loads(output)))
    details = [output.decode(errors="replace").strip()[-1000:], exit.lost or f"exit code {exit.code}"]
    raise ConfinementError(
        f"The interpreter {sys.executable} does not run confined: {'; '.join(filter(None, details))}. If it needs more of "
        "this machine than its own installation and the system's libraries, name that in `readable`."
    )


def remedy() -> str:
    """Return advice that lets this machine enforce everything that is required."""
    if sys.platform == "linux":
        if "\nSeccomp:\t0\n" not in Path("/proc/self/status").read_text():
            return (
                "This process is already under a seccomp filter, as in a container: run it outside, or with an engine whose "
                "filter permits Landlock, as Docker's does since 23.0"
            )
        for name, (value, wanted) in _AGAINST_NAMESPACES.items():
            with suppress(OSError):
                if Path("/proc/sys", *name.split(".", 1)).read_text().strip() == value:
                    return f"This machine forbids namespaces to its users: `sudo sysctl {name}={wanted}` allows them"
    return "Use Linux 5.13 or newer, with Landlock"


def _judge(enforced: frozenset[Enforced], reasons: Mapping[str, str | None], *, required: bool) -> None:
    """Raise a ``ConfinementError`` if something required is missing; warn once of anything else, with the reasons."""
    missing = [what for what in Enforced if what not in enforced]
    if not missing:
        return
    why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items() if reason)
    why = f" ({why})" if why else ""
    if required and not enforced >= REQUIRED:
        raise ConfinementError(
            f"This machine does not enforce what `confinement: required` needs; missing: {', '.join(missing)}{why}. "
            f"{remedy()}; or use a Docker executor; or set `confinement: best_effort` for code that you trust with what "
            "is missing."
        )
    warn_once(f"this machine cannot confine code completely; not enforced: {', '.join(missing)}{why}")


logger = logging.getLogger(__name__)

_WITHOUT_MOUNTS = (
    # programs that do not ask write to /tmp
    ", temporary files: below $TMPDIR and not in /tmp"
    ", locks and shared memory of multiprocessing: shared_memory: true"
)
_WITHOUT_LOOPBACK = ", and no loopback without namespaces: use sockets with a path"

_NEEDS_CONFINEMENT = (
    "`egress` needs a kernel that keeps code from the network, as all else would go past its rules. {}; or leave out `egress`, or "
    "use a Docker executor"
)

_GROUP = " control group"

_starts = FairLock(STARTS_AT_ONCE)
# by what a probe depends on: the start of its interpreter is a good part of the start of a sandbox
_found: dict[tuple[object, ...], frozenset[Enforced]] = {}


class ConfinedSandbox(Sandbox):
    """Programs of this machine that the kernel confines: no network, no files but their own, no rights.

    They run as the user of this process. When a program ends, everything that it has started ends. A supervising process is
    between them and this one: it ends everything when this process ends, for whatever reason.

    Args:
        config: How code is confined. Without a control group, the memory limit of a process is on its private memory,
            without the memory that it shares with others.
            If this machine forbids namespaces, the temporary directory is on the disk.
        workspace: An existing directory of the host, which the code may write.
        is_temporary: Whether that was made for this sandbox, and ends with it.
        workspace_mib: The largest size of a file, in MiB; ``None`` for no limit. The caller has to watch how much the
            directories of the host grow.
        packages: A layer of Python packages that the code may read; see :mod:`codeact_team.executors.packages`.
        program: The program that the zygote loads, if any.
    """

    def __init__(
        self,
        config: ConfinedSandboxConfig,
        *,
        workspace: Path,
        is_temporary: bool = False,
        workspace_mib: int | None = None,
        packages: Path | None = None,
        program: ZygoteProgram | None = None,
    ) -> None:
        self._config = config
        self._program = program
        self._workspace = workspace
        """Without links, once the sandbox has started."""
        self._is_temporary = is_temporary
        self._workspace_mib = workspace_mib
        self._packages = packages
        self._paths: list[str] = []
        self._private: TemporaryDirectory | None = None
        self._control: SupervisingProcess | None = None
        self._process: ConfinedProcess | None = None
        self._is_used = True
        """Whether programs have run since the start, other than the probe."""
        self.enforced: frozenset[Enforced] = frozenset()
        """The enforced restrictions, found by trial; empty before the first start."""
        self.ungrouped: Mapping[str, str] = {}
        """For each limit (memory, pids, cpu) that does not hold for all programs together, the reason."""

    @property
    def running(self) -> bool:
        # the descriptors of a process that is killed are closed one after the other
        is_orphaned = self._process is not None and self._process.ended and self._process.is_orphaned
        return self._control is not None and self._control.alive and not is_orphaned

    @property
    def workspace(self) -> str:
        return str(self._workspace)

    @property
    def keeps_processes_apart(self) -> bool:
        return True

    def is_own_user(self, user: str) -> bool:
        if self._control is None:
            return False
        names = [str(uid := self._control.readied.uid)]
        # a sandbox's own user has no name on this machine
        with suppress(KeyError):
            names.append(pwd.getpwuid(uid).pw_name)
        return user in names

    @property
    def private(self) -> str:
        assert self._private is not None, "it has started"
        # in namespaces it is a file system in memory
        return "/dev/shm" if self._has_namespaces else self._private.path

    @property
    def python(self) -> str:
        """The interpreter that the code finds: this process's own, with its packages."""
        return sys.executable

    @property
    def python_is_plain(self) -> bool:
        # an earlier program may have left files where Python looks for settings of its user
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
        elsewhere, loopback = ("", "") if self._has_namespaces else (_WITHOUT_MOUNTS, _WITHOUT_LOOPBACK)
        files = f"readable: {config.readable}, work_dir: {self._workspace}{elsewhere}"
        network = f"network: none, as the code runs confined{loopback}" if self.way_out is None else BY_RULES
        by_kernel = {
            Enforced.READS: (Cause.FILES, files),
            Enforced.WRITES: (Cause.READ_ONLY, f"work_dir: {self._workspace}"),
            Enforced.NETWORK: (Cause.NETWORK, network),
            Enforced.MEMORY: (Cause.MEMORY, f"memory_mib: {config.memory_mib}{each}"),
            Enforced.PROCESSES: (Cause.PROCESSES, f"pids: {config.pids}"),
        }
        disk = f"tmpfs_mib: {config.tmpfs_mib}, workspace_mib: {self._workspace_mib}"
        unseen = {Cause.UNSEEN: files} if self._has_namespaces else {}
        limits = dict(limit for what, limit in by_kernel.items() if what in self.enforced)
        return {Cause.DISK: disk, **limits, **unseen}

    @property
    def view(self) -> str:
        return "in namespaces" if self._has_namespaces else "without namespaces"

    @property
    def directories(self) -> Sequence[Path]:
        return (self._workspace,)

    @property
    def temporary(self) -> tuple[Path, int] | None:
        # in namespaces, it is in memory, and has a size
        if self._has_namespaces or self._private is None:
            return None
        return Path(self._private.path), self._config.tmpfs_mib

    @property
    def _has_namespaces(self) -> bool:
        """Whether programs see no processes but their own, and have their temporary files in memory."""
        return self._control is not None and self._control.readied.reasons.get("namespaces", "") is None

    async def stop(self) -> None:
        await to_the_end(self._stop())

    async def supervise(self, *, plain: bool = False) -> Process:
        return await self._start_program(receiving(self.python, plain=plain), supervises=True)

    async def spawn(self, argv: Sequence[str]) -> Process:
        """Start a program without a supervisor, once the one before has ended."""
        return await self._start_program(argv)

    async def _start_program(self, argv: Sequence[str], *, supervises: bool = False) -> Process:
        self._check_idle()
        environment = {**self._base_environment(), **self._config.environment}
        if self._packages is not None:
            environment |= python_path(str(self._packages), environment)
        # in namespaces, a program sees no other processes than its own
        seen = ["/proc"] if supervises and self._has_namespaces else []
        return await self._spawn(SpawnRequest(list(argv), environment, [*self._readable, *seen], supervises))

    async def supervise_loaded(self) -> Process | None:
        is_loaded = (
            self._program is not None and self._control is not None and self._control.readied.is_confined
        )
        if not (is_loaded and self.python_is_plain):
            return None
        self._check_idle()
        return await self._spawn(
            SpawnRequest(None, self._base_environment(), self._readable, supervises=True)
        )

    @property
    def _readable(self) -> list[str]:
        is_outside = self.way_out is not None and not self._has_namespaces
        return [*self._paths, self.way_out_place] if is_outside else self._paths

    def _check_idle(self) -> None:
        if not self.running:
            raise ConfinementError("The sandbox is not running: start it first.")
        if self._process is not None and not self._process.ended:
            raise SandboxError("A program still runs in the sandbox, which runs one at a time.")

    async def _spawn(self, request: SpawnRequest) -> Process:
        assert self._control is not None, "it is running"
        self._process = process = ConfinedProcess()
        self._is_used = True
        try:
            self._control.send(Message.SPAWN, request, process.inner_fds)
        except ConfinementError:
            await process.aclose()
            raise
        finally:
            process.close_inner()
        return process

    async def python_identity(self) -> PythonIdentity:
        # a package that is installed or removed changes the directory
        found = map(os.stat, (sys.executable, sysconfig.get_path("purelib")))
        state = [(each.st_ino, each.st_size, each.st_mtime_ns) for each in found]
        return PythonIdentity("this machine", f"{sys.executable} {state}")

    async def kill(self) -> None:
        process = self._process
        if process is None or process.ended:
            return
        if self._control is not None:
            # if the supervising process is gone, so is everything that it has started
            with suppress(ConfinementError):
                self._control.send(Message.KILL)
        try:
            async with time_to_end():
                await process.wait()
        except TimeoutError:
            process.lost = UNCLEARED
            if self._control is not None:
                self._control.kill()

    async def _start(self) -> None:
        async with _starts:
            self._control = control = self._launch()
            await control.wait_until_ready()
            reasons = control.readied.reasons
            self.ungrouped = {
                name.removesuffix(_GROUP): reason
                for name, reason in reasons.items()
                if reason is not None and name.endswith(_GROUP)
            }
            self.enforced = await self._find_enforced(reasons)
        if self.way_out is not None and Enforced.NETWORK not in self.enforced:
            raise ConfinementError(_NEEDS_CONFINEMENT.format(remedy()))
        _judge(self.enforced, reasons, required=self._config.confinement == "required")
        self._is_used = False

    def _launch(self) -> SupervisingProcess:
        self._paths = readable_paths(self._config.readable)
        if os.geteuid() == 0 and (closed := closed_to_others()):
            raise ConfinementError(
                f"Confined code of root can read only what everybody may read, and only root may read {closed!r} of this "
                "Python: open it to others by `chmod -R o+rX`"
            )
        lent = [os.path.abspath(path) for path in self._config.readable]
        if self._packages is not None:
            self._paths.append(str(self._packages))
            lent.append(str(self._packages))
        # code may put a link in its place from now on, so the supervising process compares its identity
        found = _opened(self._workspace)
        self._workspace = found.path
        self._private = TemporaryDirectory()
        settings = Confinement(
            readable=self._paths,
            lent=lent,
            workspace=str(self._workspace),
            workspace_identity=found.identity,
            is_temporary=self._is_temporary,
            shared_memory=self._config.shared_memory,
            private=self._private.path,
            workspace_mib=self._workspace_mib,
            memory_mib=self._config.memory_mib,
            pids=self._config.pids,
            cpus=self._config.cpus,
            tmpfs_mib=self._config.tmpfs_mib,
            way_out=[] if self.way_out is None else _shown_of(self.way_out, self._packages),
            hosts={} if self.way_out is None else {**self.way_out.hosts},
            addresses=[] if self.way_out is None else [*self.way_out.addresses],
        )
        return SupervisingProcess(settings, self._program)

    async def _find_enforced(self, reasons: Mapping[str, str | None]) -> frozenset[Enforced]:
        key = (*reasons.items(), *self._paths, sys.executable)
        if key not in _found:
            with _probe_targets(self._workspace, *self._config.readable) as targets:
                aims = map(str, (*targets, os.getpid()))
                process = await self.spawn([sys.executable, "-I", "-S", "-", *aims])
                try:
                    _found[key] = await _read_probe(process)
                finally:
                    await process.aclose()
        enforced = set(_found[key])
        if sys.platform == "linux":
            enforced.add(Enforced.MEMORY)
        if self._control is not None and self._control.readied.is_confined:
            enforced.add(Enforced.PROCESSES)
        return frozenset(enforced)

    def _base_environment(self) -> dict[str, str]:
        assert self._private is not None, "it has started"
        return {
            **self._variables_of_way_out(),
            "PATH": f"{os.path.dirname(sys.executable)}:{SEARCH_PATH}",
            # so that programs leave their files at home and not in the workspace
            "HOME": self._private.path,
            "TMPDIR": self._private.path,
            "USER": USER_NAME,
            "LOGNAME": USER_NAME,
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            # git stops if it cannot read its configuration in /etc
            "GIT_CONFIG_NOSYSTEM": "1",
        }

    @property
    def way_out_place(self) -> str:
        if self.way_out is None or self._has_namespaces:
            return super().way_out_place
        return str(self.way_out.directory)

    def _variables_of_way_out(self) -> dict[str, str]:
        if self.way_out is None:
            return {}
        # without mounts, its files are where they are
        place = self.way_out_place
        return {name: value.replace(WAY_OUT, place) for name, value in self.way_out.environment.items()}

    async def _stop(self) -> None:
        control, private = self._control, self._private
        self._control, self._private = None, None
        process, self._process = self._process, None
        if process is not None:
            process.lost = STOPPED
        if control is not None:
            await control.close()
        if private is not None:
            # the zygote has removed it, unless that was killed
            try:
                await asyncio.to_thread(private.remove)
            except OSError as error:
                logger.warning("temporary files are left in %s: %s", private.path, error)


def _shown_of(way_out: WayOut, packages: Path | None) -> Sequence[tuple[str, str]]:
    """The directory and files of a way out, each with its place in the mount view."""
    # links there lead to the same places as here
    files = [(str(file), os.path.realpath(place)) for place, file in way_out.files.items()]
    files += [
        (str(file), os.path.realpath(f"{packages}/{name}")) for name, file in way_out.of_packages.items()
    ]
    return [(str(way_out.directory), WAY_OUT), *files]


def _opened(workspace: Path) -> KnownDirectory:
    """Open the directory without following links. Raises a ``ConfinementError`` if code cannot use it."""
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
    return found
