"""The keeper of a process: its parent, which adopts whatever it leaves behind, and ends it.

Each process that the host starts has a keeper to itself, a fork of the supervisor. What forks twice, or leaves its session,
becomes a child of the keeper, so that it ends with the process, and that only. When nothing is left, the keeper is free for
another process: to fork the supervisor takes longer than to start a program.
"""

from __future__ import annotations

import errno
import fcntl
import marshal
import os
import resource
import select
import signal
import struct
import termios
import time
from contextlib import suppress

from codeact_team.sandbox.system.framing import receive_with_descriptors, send_with_descriptors
from codeact_team.sandbox.system.kernel import CODE_DESCRIPTORS, adopt_orphans, close_descriptors, limit
from codeact_team.sandbox.system.process_tree import ProcessTree, drain, notice_ended_children
from codeact_team.session.protocol import KIB, KILL_TREE, Obstacle
from codeact_team.session.runner.supervisor import code_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Sequence
    from typing import Any, Never

    from codeact_team.session.runner.supervisor.guard import Guard

    Task = tuple[dict[str, Any], Sequence[int]]
    """A request, see ``Kind.START``, with the bytes of its file as ``code``, and the standard streams of the process."""

REPORT = struct.Struct("=Bi?Bq")
"""A report of a keeper: its kind, and four values that depend on that."""
STARTED, NOT_STARTED, ENDED, _FREE = range(4)
"""The process runs, and whether its keeper can take another task when nothing of it is left; or an ``errno``, the same, and
what that is :class:`Obstacle`; or its status as :func:`os.waitpid` returns it, whether its time was over, whether something that
it has started still runs, and the microseconds of a processor that it has used with what it has started and is gone; or
nothing of it is left."""

_FIRST = 3
_MOST_HANDED = 64 * KIB
_MOST_ORDERS = 4096
_SIGNALS = [*(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})]


def keep(control: socket, guard: Guard, task: Task) -> Never:
    """In a fork of the supervisor, start processes one after the other, and keep each, until ``control`` is closed.

    Args:
        control: A socket to the supervisor. What comes is the number of a signal for the process, ``KILL_TREE``, or the next
            task; see :func:`hand`.
        guard: Keeps the processes from what belongs to us.
        task: The first request, and the standard streams of its process.
    """
    code = 1
    try:
        _Keeper(control, guard, task).run(task)
        code = 0
    finally:
        os._exit(code)


def hand(control: socket, task: Task) -> bool:
    """Hand a task to a keeper that is free. Returns whether that was possible: some are too large."""
    request, streams = task
    fds = [*{*streams}]
    message = marshal.dumps((request, [fds.index(fd) for fd in streams]))
    if len(message) > _MOST_HANDED:
        return False
    try:
        send_with_descriptors(control, message, fds)
    except OSError:
        return False
    return True


class _Keeper:
    def __init__(self, control: socket, guard: Guard, task: Task) -> None:
        os.setsid()
        self._control = control
        self._guard = guard
        end = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        close_descriptors(_FIRST, end, control.fileno(), *task[1], *guard.descriptors)
        self._home: int | None = None
        # another user may not be allowed to enter the workspace
        with suppress(OSError):
            self._home = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._environment = dict(os.environ)
        adopt_orphans()
        self._child_ended, _ = notice_ended_children()
        self._processes = ProcessTree()
        # before any process exists: none must ever run outside, and this process needs no more than one may have
        limit(resource.RLIMIT_NOFILE, CODE_DESCRIPTORS)
        guard.enter_keeper()
        self._is_apart = False
        self._leader = 0
        self._runs_out = self._leaves = False
        self._used_before = 0
        self._deadline: float | None = None
        self._poll = select.poll()
        for fd in (control.fileno(), self._child_ended):
            self._poll.register(fd, select.POLLIN)

    def run(self, task: Task | None) -> None:
        while task is not None:
            self._keep(*task)
            task = self._next_task()

    def _next_task(self) -> Task | None:
        message, fds = b"\0", list[int]()
        # a signal may have come for a process that had just ended
        while len(message) == 1:
            message, fds, _ = receive_with_descriptors(self._control, _MOST_HANDED)
        if not message:
            return None
        for fd in fds:
            os.set_inheritable(fd, False)
        request: dict[str, Any]
        places: list[int]
        request, places = marshal.loads(message)
        return request, [fds[place] for place in places]

    def _keep(self, request: dict[str, Any], streams: Sequence[int]) -> None:
        """Start a process, and return when nothing of it is left."""
        if request["apart"] and not self._is_apart:
            # the processes before have ended, so the next one may have their domain
            self._guard.separate(None if request["terminal"] is None else os.ttyname(streams[0]))
            self._is_apart = True
        if not self._start(request, streams):
            return
        while self._leader or self._has_left():
            time_left = self._time_left()
            ready = {fd for fd, _ in self._poll.poll(time_left)}
            if self._child_ended in ready:
                drain(self._child_ended)
                self._processes.reap()
                self._note_end()
            if self._control.fileno() in ready:
                self._obey()
            # not only if nothing is ready: code can send it signals all the time
            if time_left == 0 and self._deadline is not None:
                self._end_all()
                self._note_end(timed_out=True)
        if self._leaves:
            self._report(_FREE)

    def _start(self, request: dict[str, Any], streams: Sequence[int]) -> bool:
        about, self._used_before = Obstacle.DIRECTORY, _used_by_children()
        try:
            if self._home is not None:
                os.fchdir(self._home)
            if request["cwd"] is not None:
                os.chdir(request["cwd"])
            about = Obstacle.CODE_FILE
            if request["code_file"] is not None:
                path, private, is_python = request["code_file"]
                code_files.write(path, private, request["code"])
                if is_python:
                    request["env"] |= code_files.without_user_packages()
            about = Obstacle.PROGRAM
            self._leader = self._spawn(request, streams)
        except OSError as error:
            self._report(NOT_STARTED, error.errno or 0, self._can_keep_another(request), about)
        finally:
            for fd in {*streams}:
                os.close(fd)
        if not self._leader:
            return False
        self._processes.add(self._leader)
        self._runs_out, self._leaves = request["runs_out"], False
        timeout = request["timeout"]
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self._report(STARTED, self._leader, self._can_keep_another(request))
        return True

    def _can_keep_another(self, request: dict[str, Any]) -> bool:
        # its domain has only one terminal
        return self._home is not None and request["terminal"] is None

    def _spawn(self, request: dict[str, Any], streams: Sequence[int]) -> int:
        """Start the program in a session of its own. Without a fork of this process, which would take longer than all else."""
        # the C library looks for the program by the variables of this process
        os.environ.update(request["env"])
        try:
            if request["terminal"] is not None:
                return self._guard.start_code(lambda: _start_in_terminal(request["argv"], streams))
            return self._guard.start_code(
                lambda: os.posix_spawnp(
                    request["argv"][0],
                    request["argv"],
                    os.environ,
                    file_actions=[(os.POSIX_SPAWN_DUP2, fd, there) for there, fd in enumerate(streams)],
                    setsid=True,
                    # ignored signals stay ignored in a new program, and blocked ones blocked
                    setsigdef=_SIGNALS,
                    setsigmask=(),
                )
            )
        finally:
            for name in request["env"]:
                if name in self._environment:
                    os.environ[name] = self._environment[name]
                else:
                    del os.environ[name]

    def _report(
        self, kind: int, number: int = 0, first: bool = False, second: int = 0, used: int = 0
    ) -> None:
        # the supervisor may have ended, which shows when this reads next
        with suppress(OSError):
            self._control.send(REPORT.pack(kind, number, first, second, used))

    def _time_left(self) -> float | None:
        """Milliseconds."""
        return None if self._deadline is None else max(0.0, (self._deadline - time.monotonic()) * 1000)

    def _obey(self) -> None:
        """Do what the supervisor demands. Without a supervisor, end."""
        orders = self._control.recv(_MOST_ORDERS)
        for order in orders:
            if order == KILL_TREE:
                self._end_all()
                self._note_end()
            elif self._leader:
                # it may have ended, and a sandbox may refuse a signal
                with suppress(OSError):
                    os.killpg(self._leader, order)
        if not orders:
            self._end_all()
            os._exit(0)

    def _end_all(self) -> None:
        # most leave nothing, and to look for it takes longer than to know that
        while self._has_left() and not self._processes.end_all():
            pass

    def _note_end(self, *, timed_out: bool = False) -> None:
        """Report the end of the process, if it has ended."""
        if not self._leader or (status := self._processes.status(self._leader)) is None:
            return
        # its number may be another's from now on
        self._leader = 0
        self._deadline = None
        if self._runs_out:
            self._end_all()
        self._leaves = self._has_left()
        self._report(ENDED, status, timed_out, self._leaves, _used_by_children() - self._used_before)

    def _has_left(self) -> bool:
        """Whether something that the process has started still runs."""
        # not by a list: what a process that ends hands over may be in none for a moment
        self._processes.reap()
        return self._processes.has_children


def _start_in_terminal(argv: list[str], streams: Sequence[int]) -> int:
    """Start a program that the terminal of ``streams`` controls. By a fork, as its path may be closed to programs.

    Returns its process id. Raises an ``OSError`` if it cannot be started.
    """
    failing, failed = os.pipe()
    if (child := os.fork()) == 0:
        try:
            for number in _SIGNALS:
                with suppress(OSError):
                    signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            os.setsid()
            fcntl.ioctl(streams[0], termios.TIOCSCTTY, 0)
            for there, fd in enumerate(streams):
                os.dup2(fd, there)
            os.execvp(argv[0], argv)
        except OSError as error:
            os.write(failed, bytes([error.errno or errno.EPERM]))
        finally:
            os._exit(127)
    os.close(failed)
    with open(failing, "rb") as report:
        # the start of a program closes it
        if error := report.read():
            os.waitpid(child, 0)
            raise OSError(error[0], os.strerror(error[0]))
    return child


def _used_by_children() -> int:
    """Microseconds of a processor that all children which have ended have used, with theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return round((used.ru_utime + used.ru_stime) * 1_000_000)
