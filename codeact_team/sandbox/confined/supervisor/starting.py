"""Starts programs: confined with namespaces, without them, or with the limits of this process only."""

from __future__ import annotations

import os
import resource
import signal
import socket
import struct
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple, Protocol, Self

from codeact_team.sandbox.confined.protocol import Confinement, SpawnRequest
from codeact_team.sandbox.confined.supervisor import calls, isolation
from codeact_team.sandbox.confined.supervisor.answering import Answering
from codeact_team.sandbox.confined.supervisor.asked_network import NetworkCalls
from codeact_team.sandbox.confined.supervisor.isolation import SHARED_MEMORY
from codeact_team.sandbox.confined.supervisor.listening import (
    Listener,
    install_asking,
    receive_listener,
    send_listener,
)
from codeact_team.sandbox.confined.supervisor.users import User
from codeact_team.sandbox.system import kernel
from codeact_team.sandbox.system.control_groups import GroupCounters
from codeact_team.sandbox.system.kernel import (
    CODE_DESCRIPTORS,
    MIB,
    OWN_DESCRIPTORS,
    RELAY_DESCRIPTORS,
    close_descriptors,
    descriptors_of_libffi,
    limit,
)

_NOT_CONFINED = "a loaded program runs only where code is confined"
_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_ERRNO = struct.Struct("=i")


class PreloadedProgram(Protocol):
    """The program that the zygote has loaded."""

    def take_over(self, environment: Mapping[str, str]) -> None: ...


class ForkingThread(Protocol):
    """Forks for other threads."""

    def serve(self, work: Callable[[], None]) -> None: ...

    def fork(self, child: Callable[[], bool]) -> int: ...


class RunningProgram(Protocol):
    """A program that was started."""

    @property
    def pid(self) -> int | None: ...

    def wait(self) -> object: ...


Start = Callable[[SpawnRequest, GroupCounters], RunningProgram]
"""Starts a program on the standard streams of this process. One that supervises code inherits the counters, if it is
confined."""


def in_namespaces(
    settings: Confinement,
    mounts: Sequence[tuple[str, str]],
    main_thread: ForkingThread,
    loaded: PreloadedProgram | None,
) -> Start:
    """Start programs in the namespaces of this process."""
    writable = [
        settings.workspace,
        settings.private,
        os.devnull,
        SHARED_MEMORY,
        *isolation.own_temporary(settings),
        *isolation.own_terminals(),
    ]
    # the mount view shows as much of /proc as may be seen
    shown = ["/proc", *(place for _, place in (*mounts, *settings.way_out)), *isolation.own_files()]
    most = RELAY_DESCRIPTORS if settings.way_out else OWN_DESCRIPTORS

    def start(request: SpawnRequest, counters: GroupCounters) -> RunningProgram:
        def confine() -> None:
            _limit_descriptors(request, most)
            isolation.allow_only([*request.readable, *shown], writable, has_own_network=True)
            os.chdir(settings.workspace)

        preparation = _Preparation(request.argv, *_given(request, counters), confine)
        return _start(preparation, main_thread, loaded)

    return start


def without_namespaces(
    settings: Confinement, user: User | None, main_thread: ForkingThread, loaded: PreloadedProgram | None
) -> Start:
    """Start programs by the side of all others of this machine, with a listener in this process."""
    # the second leads each program to its own terminal, if it has one
    devices = [*filter(os.path.exists, [os.devnull, isolation.OWN_TERMINAL])]
    if settings.shared_memory or (user is not None and user.is_own):
        devices += filter(os.path.exists, [SHARED_MEMORY])
    has_way_out = bool(settings.way_out)
    rules = calls.without_namespaces(kernel.landlock_abi(), kernel.landlock_scopes(), has_way_out=has_way_out)

    def start(request: SpawnRequest, counters: GroupCounters) -> RunningProgram:
        def confine() -> None:
            _limit_descriptors(request, OWN_DESCRIPTORS)
            shown = ["/proc"] if request.supervises else []
            isolation.allow_only([*request.readable, *shown], writable)
            os.fchdir(own[0])
            for descriptor in own:
                os.close(descriptor)
            with theirs:
                send_listener(theirs, install_asking(rules))

        environment, inherited = _given(request, counters)
        ours, theirs = socket.socketpair()
        with ExitStack() as within:
            within.enter_context(ours)
            within.enter_context(theirs)
            own = [settings.open_workspace(), os.open(settings.private, _DIRECTORY)]
            for descriptor in own:
                within.callback(os.close, descriptor)
            writable = [*own, *devices]
            if request.supervises:
                # what it starts itself is not to see the processes of this machine
                files = [path for path in request.readable if not path.startswith("/proc/self")]
                # within its own domain, it decides itself who may signal whom
                ruleset = isolation.make_domain(files, writable, scoped=False)
                within.callback(os.close, ruleset)
                environment, inherited = (
                    environment | kernel.handed(kernel.DOMAIN, ruleset),
                    [*inherited, ruleset],
                )
            network = None
            if request.supervises and has_way_out:
                door, theirs_of_door = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                within.enter_context(door)
                within.enter_context(theirs_of_door)
                inner = theirs_of_door.fileno()
                environment, inherited = environment | kernel.handed(kernel.DOOR, inner), [*inherited, inner]
                network = partial(_network, door, settings)
            preparation = _Preparation(request.argv, environment, inherited, confine, [theirs.fileno(), *own])
            program = _start(preparation, main_thread, loaded)
            Answering(receive_listener(ours), own, settings.pids, network).start()
        return program

    return start


def _network(door: socket.socket, settings: Confinement, listener: Listener) -> NetworkCalls:
    directory, _ = settings.way_out[0]
    return NetworkCalls(listener, door.dup(), settings.addresses, f"{directory}/socket")


def _given(request: SpawnRequest, counters: GroupCounters) -> tuple[dict[str, str], Sequence[int]]:
    """The variables of a program, and the descriptors that it inherits."""
    if not request.supervises:
        return request.env, ()
    return request.env | counters.handed(), counters.descriptors


def plain(settings: Confinement, *, limit_memory: bool) -> Start:
    """Start programs with the limits of this process."""
    limit(resource.RLIMIT_NOFILE, OWN_DESCRIPTORS)
    if limit_memory:
        limit(resource.RLIMIT_DATA, settings.memory_mib * MIB)

    def start(request: SpawnRequest, counters: GroupCounters) -> RunningProgram:
        assert request.argv is not None, _NOT_CONFINED
        return subprocess.Popen(request.argv, env=request.env, cwd=settings.workspace, start_new_session=True)

    return start


def _limit_descriptors(request: SpawnRequest, most: int) -> None:
    # a program that supervises code has to be able to do what code cannot do any more
    limit(resource.RLIMIT_NOFILE, most if request.supervises else CODE_DESCRIPTORS)


class _ForkedProgram(NamedTuple):
    """A program that was started as a fork of this process."""

    pid: int

    def wait(self) -> None:
        """Reap it, once it has ended."""
        os.waitpid(self.pid, 0)


class _Preparation(NamedTuple):
    """What becomes of a fork of this process, which has the standard streams of this process.

    Attributes:
        argv: The program and its arguments; ``None`` for the program that this process has loaded.
        environment: Its variables.
        inherited: Its other descriptors.
        confine: Called first in the fork. Raises an ``OSError`` if the program must not run.
        handed: More descriptors for ``confine``.
    """

    argv: Sequence[str] | None
    environment: Mapping[str, str]
    inherited: Sequence[int]
    confine: Callable[[], None]
    handed: Sequence[int] = ()


def _start(
    preparation: _Preparation, main_thread: ForkingThread, loaded: PreloadedProgram | None
) -> _ForkedProgram:
    """Start a program. Not to be called by the main thread. Raises an ``OSError`` if it cannot be started."""
    argv, environment, inherited, confine, handed = preparation

    def become() -> bool:
        try:
            birth.enter_child(confine, *inherited, *handed, *(() if argv else descriptors_of_libffi()))
            if argv is not None:
                for fd in inherited:
                    os.set_inheritable(fd, True)
                # Python ignores it, and a program would inherit that
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)
                os.execvpe(argv[0], [*argv], environment)
        except OSError as error:
            birth.fail(error)
            os._exit(1)
        birth.succeed()
        assert loaded is not None, "it is requested only if there is one"
        loaded.take_over(environment)
        return False

    with _Birth() as birth:
        if argv is None:
            pid = main_thread.fork(become)
        elif (pid := os.fork()) == 0:
            try:
                become()
            finally:
                os._exit(1)
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
