"""The supervising process between the host and confined code: starts programs, one at a time, and ends what they leave.

When the socket to the host closes, or the host's process ends, everything ends.
"""

from __future__ import annotations

import os
import resource
import selectors
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from enum import Enum, auto
from functools import partial
from typing import NamedTuple

from codeact_team.sandbox.confined.protocol import (
    Confinement,
    Message,
    MessageSocket,
    ProgramEnd,
    Readied,
    SpawnRequest,
    encode,
)
from codeact_team.sandbox.confined.supervisor import calls, isolation, starting, users
from codeact_team.sandbox.confined.supervisor.control_groups import CONTROLLERS, OWN_TASKS, ControlGroup
from codeact_team.sandbox.system import filters, kernel
from codeact_team.sandbox.system.control_groups import GroupCounters
from codeact_team.sandbox.system.kernel import (
    KILLED_SECOND,
    LOCKED_BYTES,
    MIB,
    PENDING_SIGNALS,
    OomScore,
    limit,
)
from codeact_team.sandbox.system.process_tree import ProcessTree, drain, notice_ended_children

_SPAWN_DESCRIPTORS = 3
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_STACK = 8 * MIB
"""Bytes of a program's first stack, which the memory limit of a process does not count. The default of Linux."""

BOUNDING = {"memory", "pids"}
"""The controllers without which the kernel cannot limit what programs of root use."""


class View(Enum):
    """What code can be confined by."""

    NAMESPACES = auto()
    """It sees nothing but its own."""
    LISTENER = auto()
    """It sees the machine, and the listener decides what Landlock does not."""
    NONE = auto()
    """Nothing suffices. It may be in namespaces, but can do more than it should."""


class Capabilities(NamedTuple):
    """The means of this machine to confine the code of one sandbox.

    Attributes:
        group: Its control group, on Linux.
        view: How code is confined.
        no_namespaces: The reason if it is not in namespaces; ``None`` if it is.
        no_listener: The reason if what code asks cannot be answered; ``None`` if it can, or need not.
        user: Whom programs run as without namespaces, if not as the user of this process.
        program: The program that the zygote has loaded, if any.
    """

    group: ControlGroup | None
    view: View
    no_namespaces: str | None
    no_listener: str | None
    user: users.User | None
    program: starting.PreloadedProgram | None


class _Programs:
    """Starts programs, one at a time, in the context ``starting``, and ends each with everything that it has forked."""

    def __init__(
        self, start: starting.Start, starting: AbstractContextManager[None], counters: GroupCounters
    ) -> None:
        self._start = start
        self._starting = starting
        self._counters = counters
        self._processes = ProcessTree(can_scan=True)
        self._program: starting.RunningProgram | None = None
        self._leader = 0
        self._status = -1
        self.child_ended, _ = notice_ended_children()

    def spawn(self, request: SpawnRequest, descriptors: Sequence[int]) -> None:
        """Start a program. The descriptors: its stdin, its output, and the pipe to which its end is written."""
        stdin, output, self._status = descriptors
        try:
            with _standard_streams(stdin, output), self._starting:
                self._program = self._start(request, self._counters)
            assert self._program.pid is not None
            self._leader = self._program.pid
            self._processes.add(self._leader)
        except (FileNotFoundError, PermissionError) as error:
            name = request.argv[0] if request.argv else "the loaded program"
            os.write(output, f"{name}: {error.strerror}\n".encode())
            self._report(ProgramEnd(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE))
        except (OSError, RuntimeError, ValueError) as error:
            self._report(ProgramEnd(1, failed=str(error) or repr(error)))
        finally:
            os.close(stdin)
            os.close(output)

    def kill(self) -> None:
        """Kill everything that runs. :meth:`reap` notices what ends."""
        if self._program is not None:
            self._processes.kill_all()

    def reap(self) -> None:
        """Reap what has ended: the program, or orphans of it."""
        drain(self.child_ended)
        while self._program is not None and (child := _ended_child(self._program)) is not None:
            pid, code = child
            if pid == self._leader:
                self._end(self._program)
                self._report(ProgramEnd(code))
            else:
                os.waitpid(pid, 0)

    def close(self) -> None:
        """End everything."""
        if self._program is not None:
            self.kill()
            self._end(self._program)

    def _end(self, program: starting.RunningProgram) -> None:
        program.wait()
        while not self._processes.end_all():
            pass
        self._processes.forget(self._leader)
        self._program = None

    def _report(self, end: ProgramEnd) -> None:
        with suppress(BrokenPipeError):
            os.write(self._status, encode(end))
        os.close(self._status)


@contextmanager
def _standard_streams(stdin: int, output: int) -> Generator[None]:
    """Within it, this process has the standard streams of the program to start."""
    for target, fd in enumerate((stdin, output, output)):
        os.dup2(fd, target)
    try:
        yield
    finally:
        close_standard_streams()


def close_standard_streams() -> None:
    """Connect the standard streams to nothing."""
    null = os.open(os.devnull, os.O_RDWR)
    for target in range(3):
        os.dup2(null, target)
    os.close(null)


def _ended_child(program: starting.RunningProgram) -> tuple[int, int] | None:
    """A child that has ended and was not reaped, with its exit code; 128 + n for signal n."""
    if sys.platform != "linux":
        # orphans of others do not come to us there, and waitid comes with Python 3.13
        assert isinstance(program, subprocess.Popen)
        code = program.poll()
        return None if code is None else (program.pid, code if code >= 0 else 128 - code)
    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_pid, ended.si_status if ended.si_code == os.CLD_EXITED else 128 + ended.si_status


def _harden(
    settings: Confinement, capabilities: Capabilities, main_thread: starting.ForkingThread, birth: int
) -> tuple[_Programs, dict[str, str | None]]:
    """Give up everything that this process does not need, and that its programs must not have.

    Returns who starts programs, and for each mechanism why it is not available, or ``None``.
    """
    limit(resource.RLIMIT_CORE, 0)
    if sys.platform == "linux":
        # counted for all processes of a user, who may have others
        limit(resource.RLIMIT_SIGPENDING, PENDING_SIGNALS)
        limit(resource.RLIMIT_MSGQUEUE, 0)
        limit(resource.RLIMIT_MEMLOCK, LOCKED_BYTES)
    # the names of sockets are kept open for all that code has bound
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    limit(resource.RLIMIT_STACK, _STACK)
    if settings.workspace_mib is not None:
        limit(resource.RLIMIT_FSIZE, settings.workspace_mib * MIB)
    if (group := capabilities.group) is None:
        _report_birth(birth)
        start = starting.plain(settings, limit_memory=False)
        return _Programs(start, OomScore(), GroupCounters()), {"listener": capabilities.no_listener}
    proc = os.open("/proc", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if capabilities.no_namespaces is None:
        lender = users.user_in_namespaces()
        view = partial(isolation.enter_mount_view, settings, group.mounts, lender)
        user = isolation.enter_namespaces(view, birth, any_port=bool(settings.way_out))
        if lender is not None and lender.lending is not None:
            os.close(lender.lending)
        os.close(birth)
    else:
        if (user := capabilities.user) is not None:
            # by now, the path of the workspace may lead to a directory of root's
            users.give(user, settings.open_workspace())
            users.give(user, os.open(settings.private, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        _report_birth(birth)
    _require_access(settings, user)
    oom_score = OomScore(KILLED_SECOND, proc)
    os.close(proc)
    kernel.checked(kernel.adopt_orphans())
    users.drop_privileges(user)
    if capabilities.view is not View.LISTENER:
        # it ends with its parent, set late as a change of privileges undoes it; without a namespace, it has to end its programs first
        kernel.checked(kernel.prctl(kernel.PR_SET_PDEATHSIG, signal.SIGKILL))
    # late, so that the memory of this process until now does not count
    group.enter()
    rules, start = _confinement(settings, group, capabilities, main_thread)
    reasons = {
        "listener": capabilities.no_listener,
        "namespaces": capabilities.no_namespaces,
        "seccomp": _try_filter(rules),
    }
    reasons |= {f"{name} control group": group.missing.get(name) for name in sorted(CONTROLLERS)}
    return _Programs(start, oom_score, group.counters), reasons


def _require_access(settings: Confinement, user: users.User | None) -> None:
    """Raise an ``OSError`` if the workspace is another user's, of whose rights root will have none."""
    status = os.stat(settings.workspace)
    is_others = status.st_uid not in (0, os.getuid() if user is None else user.id)
    if os.getuid() == 0 and is_others and ~status.st_mode & stat.S_IRWXO:
        raise OSError(
            f"The work_dir {settings.workspace!r} belongs to user {status.st_uid}, as one that was made for a container does, "
            "and confined code of root may not write there: name another `work_dir`, or give this one to root"
        )


def _report_birth(birth: int) -> None:
    os.write(birth, str(os.getpid()).encode())
    os.close(birth)


def _confinement(
    settings: Confinement,
    group: ControlGroup,
    capabilities: Capabilities,
    main_thread: starting.ForkingThread,
) -> tuple[Sequence[filters.Rule], starting.Start]:
    """The system calls to refuse in this process and in all programs, and how to start these."""
    limit_memory = "memory" in group.missing
    if capabilities.view is View.NONE:
        return calls.FOR_PLAIN, starting.plain(settings, limit_memory=limit_memory)
    if limit_memory:
        limit(resource.RLIMIT_DATA, settings.memory_mib * MIB)
    if capabilities.view is View.LISTENER:
        # this process does what programs may not: each of them refuses more itself
        return (), starting.without_namespaces(settings, capabilities.user, main_thread, capabilities.program)
    if os.getuid() == 0 and (missing := sorted(BOUNDING & group.missing.keys())):
        raise OSError(f"the control groups cannot be entered: {', '.join(missing)}")
    if "pids" in group.missing:
        limit(resource.RLIMIT_NPROC, settings.pids + OWN_TASKS)
    start = starting.in_namespaces(settings, group.mounts, main_thread, capabilities.program)
    return calls.IN_NAMESPACES, start


def _try_filter(rules: Sequence[filters.Rule]) -> str | None:
    try:
        filters.install((*calls.FOR_ALL, *rules))
    except OSError as error:
        return str(error)
    return None


def _serve(
    control: socket.socket, messages: MessageSocket, above: Sequence[int], programs: _Programs
) -> None:
    """Do what the host requests until it, or anything else ``above``, goes away."""
    with selectors.DefaultSelector() as selector:
        for fd in (control, programs.child_ended, *above):
            selector.register(fd, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in selector.select()}
            if ready.intersection(above):
                return
            if programs.child_ended in ready:
                programs.reap()
            if control.fileno() not in ready:
                continue
            for kind, value in messages.receive():
                if kind == Message.SPAWN:
                    programs.spawn(SpawnRequest(*value), messages.take_descriptors(_SPAWN_DESCRIPTORS))
                else:
                    programs.kill()


def supervise(
    control: socket.socket,
    settings: Confinement,
    capabilities: Capabilities,
    main_thread: starting.ForkingThread,
    *,
    above: Sequence[int],
    birth: int,
) -> None:
    """Harden this process, and start a thread that serves the host by a socket, in this process or in a child.

    A descriptor of ``above`` becomes readable when the host's process ends, or the zygote, where there can be such. ``birth``
    is a pipe that gets the id of the process that serves, and is closed then.
    """
    messages = MessageSocket(control)
    try:
        programs, reasons = _harden(settings, capabilities, main_thread, birth)
    except OSError as error:
        refuse(messages, error)
        os._exit(0)

    def serve() -> None:
        with closing(programs), suppress(EOFError, ConnectionResetError):
            readied = Readied(reasons, is_confined=capabilities.view is not View.NONE, uid=os.getuid())
            messages.send(Message.READY, readied)
            _serve(control, messages, above, programs)

    # threads that are started later inherit what confines this one
    main_thread.serve(serve)


def refuse(messages: MessageSocket, reason: OSError) -> None:
    """Report to the host why the supervising process cannot start."""
    with suppress(OSError):
        messages.send(Message.FAILED, str(reason))
