"""Starts programs: confined by the kernel alone, by sandlock, or with the limits of this process only."""

from __future__ import annotations

import os
import resource
import signal
import struct
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, Self

from codeact_team.sandbox.confined.protocol import Confinement, SpawnRequest
from codeact_team.sandbox.confined.supervisor import isolation
from codeact_team.sandbox.confined.supervisor.isolation import SHARED_MEMORY
from codeact_team.sandbox.system.control_groups import GroupCounters
from codeact_team.sandbox.system.kernel import (
    CODE_DESCRIPTORS,
    MIB,
    OWN_DESCRIPTORS,
    close_descriptors,
    descriptors_of_libffi,
    limit,
)

# these change files outside the workspace whatever Landlock says; not needed if the mounts are read-only
_METADATA_CALLS = (
    "chmod fchmodat fchmodat2 chown lchown fchownat utime utimes futimesat utimensat setxattr lsetxattr setxattrat "
    "removexattr lremovexattr removexattrat file_setattr"
).split()
_PROCESSES_OF_SANDLOCK = 1
"""The process ids that sandlock takes for itself before a program gets its own."""
_NOT_PRIVATE = {"task", "children", "cwd", "exe", "root"}
"""Besides the list of children, links: to deny a link denies its target, for example the interpreter."""
_NOBODYS = "/proc/0"
"""Denied only to deny something: sandlock then opens all files by calls whose mode our filter sees, also for openat2."""
_NOT_BY_KERNEL = "a loaded program runs only where the kernel alone confines"
# memory that the memory limit does not count
_UNCOUNTED_MEMORY_CALLS = ["memfd_create", "memfd_secret"]

_ERRNO = struct.Struct("=i")


class PreloadedProgram(Protocol):
    """The program that the zygote has loaded."""

    def take_over(self, environment: Mapping[str, str]) -> None: ...


class ForkingThread(Protocol):
    """Forks for other threads."""

    def serve(self, work: Callable[[], None]) -> None: ...

    def fork(self, child: Callable[[], bool]) -> int: ...


class RunningProgram(Protocol):
    """A program that was started: sandlock's, or a plain one."""

    @property
    def pid(self) -> int | None: ...

    def wait(self) -> object: ...


Start = Callable[[SpawnRequest, GroupCounters], RunningProgram]
"""Starts a program on the standard streams of this process. One that supervises code inherits the counters, if the kernel alone
confines."""


def by_kernel(
    settings: Confinement,
    mounts: Sequence[tuple[str, str]],
    main_thread: ForkingThread,
    loaded: PreloadedProgram | None,
) -> Start:
    """Start programs that the kernel alone confines."""
    writable = [
        settings.workspace,
        settings.private,
        os.devnull,
        SHARED_MEMORY,
        *isolation.own_temporary(settings),
        *isolation.own_terminals(),
    ]
    # the mount view shows as much of /proc as may be seen
    shown = ["/proc", *(place for _, place in mounts), *isolation.own_files()]

    def start(request: SpawnRequest, counters: GroupCounters) -> RunningProgram:
        def confine() -> None:
            limit(resource.RLIMIT_NOFILE, _most_descriptors(request))
            isolation.allow_only([*request.readable, *shown], writable)
            os.chdir(settings.workspace)

        environment, inherited = request.env, counters.descriptors if request.supervises else ()
        if request.supervises:
            environment |= counters.handed()
        if request.argv is not None:
            return _start_fork(confine, request.argv, environment, inherited)
        assert loaded is not None, "it is requested only if there is one"
        return _start_loaded(confine, main_thread, loaded, environment, inherited)

    return start


def by_sandlock(
    sandlock: Any,
    settings: Confinement,
    mounts: Sequence[tuple[str, str]] | None,
    *,
    limit_memory: bool,
) -> Start:
    """Start programs with sandlock. ``mounts`` are in the namespaces; ``None`` without namespaces."""
    writable = [settings.workspace, settings.private, os.devnull]
    denied = [*_UNCOUNTED_MEMORY_CALLS]
    shown = [place for _, place in mounts or ()]
    if mounts is None:
        denied += _METADATA_CALLS
    else:
        shown += isolation.own_files()
        writable += [SHARED_MEMORY, *isolation.own_temporary(settings), *isolation.own_terminals()]

    def start(request: SpawnRequest, counters: GroupCounters) -> RunningProgram:
        assert request.argv is not None, _NOT_BY_KERNEL
        return sandlock.Sandbox(
            fs_readable=[*request.readable, *shown],
            fs_denied=list(_private_to_the_next()) if "/proc" in request.readable else [_NOBODYS],
            fs_writable=writable,
            clean_env=True,
            env=request.env,
            cwd=settings.workspace,
            max_memory=f"{settings.memory_mib}M" if limit_memory else None,
            max_processes=settings.pids,
            max_open_files=_most_descriptors(request),
            extra_deny_syscalls=denied,
            allow_degraded=list(sandlock.Protection),
        ).popen(request.argv)

    return start


def _private_to_the_next() -> Iterator[str]:
    """The files in ``/proc`` of the program that is started next, except the list of its children."""
    with open("/proc/loadavg") as file:
        pid = int(file.read().split()[-1]) + _PROCESSES_OF_SANDLOCK + 1
    for own, theirs in (("/proc/self", f"/proc/{pid}"), ("/proc/thread-self", f"/proc/{pid}/task/{pid}")):
        yield from (f"{theirs}/{name}" for name in os.listdir(own) if name not in _NOT_PRIVATE)


def plain(settings: Confinement, *, limit_memory: bool) -> Start:
    """Start programs without sandlock, with the limits of this process."""
    limit(resource.RLIMIT_NOFILE, OWN_DESCRIPTORS)
    if limit_memory:
        limit(resource.RLIMIT_DATA, settings.memory_mib * MIB)

    def start(request: SpawnRequest, counters: GroupCounters) -> RunningProgram:
        assert request.argv is not None, _NOT_BY_KERNEL
        return subprocess.Popen(request.argv, env=request.env, cwd=settings.workspace, start_new_session=True)

    return start


def _most_descriptors(request: SpawnRequest) -> int:
    # a program that supervises code has to be able to do what code cannot do any more
    return OWN_DESCRIPTORS if request.supervises else CODE_DESCRIPTORS


class _ForkedProgram(NamedTuple):
    """A program that was started as a fork of this process."""

    pid: int

    def wait(self) -> None:
        """Reap it, once it has ended."""
        os.waitpid(self.pid, 0)


def _start_fork(
    prepare: Callable[[], None],
    argv: Sequence[str],
    environment: Mapping[str, str],
    inherited: Sequence[int],
) -> _ForkedProgram:
    """Start a program with the standard streams of this process, and no other descriptors than those ``inherited``.

    ``prepare`` is called first in its process. Raises an ``OSError`` if that does, or the program cannot be started.
    """
    with _Birth() as birth:
        if (pid := os.fork()) == 0:
            try:
                birth.enter_child(prepare, *inherited)
                for fd in inherited:
                    os.set_inheritable(fd, True)
                # Python ignores it, and a program would inherit that
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)
                os.execvpe(argv[0], [*argv], environment)
            except OSError as error:
                birth.fail(error)
            finally:
                os._exit(1)
    return birth.wait(pid)


def _start_loaded(
    prepare: Callable[[], None],
    main_thread: ForkingThread,
    program: PreloadedProgram,
    environment: Mapping[str, str],
    inherited: Sequence[int],
) -> _ForkedProgram:
    """Like :func:`_start_fork`, with a program that this process has loaded. Not to be called by the main thread."""

    def become() -> bool:
        try:
            birth.enter_child(prepare, *inherited, *descriptors_of_libffi())
        except OSError as error:
            birth.fail(error)
            os._exit(1)
        birth.succeed()
        program.take_over(environment)
        return False

    with _Birth() as birth:
        pid = main_thread.fork(become)
    return birth.wait(pid)


class _Birth:
    """A pipe by which a fork reports why it cannot become a program. Both processes have it within the ``with``."""

    def __init__(self) -> None:
        self._failure, self._reporting = os.pipe()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._reporting)

    def enter_child(self, prepare: Callable[[], None], *kept: int) -> None:
        """In the fork, close everything that belongs to this process except ``kept``, and call ``prepare``."""
        os.setsid()
        close_descriptors(3, os.sysconf("SC_OPEN_MAX"), self._reporting, *kept)
        prepare()

    def fail(self, error: OSError) -> None:
        """In the fork, report a failure."""
        os.write(self._reporting, _ERRNO.pack(error.errno or 0) + (error.strerror or str(error)).encode())

    def succeed(self) -> None:
        """In the fork, report that nothing has failed."""
        os.close(self._reporting)

    def wait(self, pid: int) -> _ForkedProgram:
        """Wait until the fork has become a program. Raises an ``OSError`` if it cannot."""
        with open(self._failure, "rb") as reports:
            # the start of a program closes it
            if error := reports.read():
                os.waitpid(pid, 0)
                [number] = _ERRNO.unpack_from(error)
                raise OSError(number, error[_ERRNO.size :].decode())
        return _ForkedProgram(pid)
