"""The keeper of a process: its parent, which adopts whatever it leaves behind, and ends it.

Each process that the host starts has a keeper of its own, a fork of the supervisor. What forks twice, or leaves its session,
becomes a child of the keeper, so that it ends with the process, and that only.
"""

from __future__ import annotations

import marshal
import os
import resource
import select
import signal
import struct
import time
from contextlib import suppress

from codeact_team.sandbox.system.framing import receive_with_descriptors, send_with_descriptors
from codeact_team.sandbox.system.kernel import CODE_DESCRIPTORS, adopt_orphans, limit
from codeact_team.sandbox.system.process_tree import ProcessTree, drain, notice_ended_children
from codeact_team.session.protocol import KIB, KILL_TREE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Sequence
    from typing import Any, Never

    from codeact_team.session.runner.supervisor.guard import Guard

    Task = tuple[dict[str, Any], Sequence[int]]
    """A request, see ``Kind.START``, and the standard streams of the process."""

REPORT = struct.Struct("=Bi??")
"""A report of a keeper: its kind, a number, and two facts."""
STARTED, NOT_STARTED, ENDED = range(3)
"""The process runs; or an ``errno``, and whether that is about its directory; or its status as :func:`os.waitpid` returns it,
whether its time was over, and whether something that it has started still runs."""

_FIRST = 3
_MOST_HANDED = 64 * KIB
_MOST_ORDERS = 4096
_SIGNALS = [*(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})]


def keep(control: socket, guard: Guard, task: Task | None) -> Never:
    """In a fork of the supervisor, start a process, and keep it until ``control`` is closed.

    Args:
        control: A socket to the supervisor. What comes is one byte each: the number of a signal, or ``KILL_TREE``.
        guard: Keeps the process from what belongs to us.
        task: What is requested, and the standard streams; ``None`` if that will come through ``control``; see :func:`hand`.
    """
    code = 1
    try:
        _Keeper(control, guard, task).run()
        code = 0
    finally:
        os._exit(code)


def hand(control: socket, task: Task) -> bool:
    """Hand a task to a keeper that waits for one. Returns whether that was possible: some are too large."""
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


def _receive(control: socket) -> Task:
    message, fds, _ = receive_with_descriptors(control, _MOST_HANDED)
    if not message:
        # it is not needed
        os._exit(0)
    request: dict[str, Any]
    places: list[int]
    request, places = marshal.loads(message)
    return request, [fds[place] for place in places]


class _Keeper:
    def __init__(self, control: socket, guard: Guard, task: Task | None) -> None:
        os.setsid()
        self._control = control
        control.setblocking(True)
        _close_others(control.fileno(), *(task[1] if task else ()), *guard.descriptors)
        adopt_orphans()
        self._child_ended, _ = notice_ended_children()
        self._processes = ProcessTree()
        # before it exists: it must never run outside, and this process needs no more than it may have
        limit(resource.RLIMIT_NOFILE, CODE_DESCRIPTORS)
        guard.enter_keeper()
        self._request, streams = task or _receive(control)
        if self._request["apart"]:
            guard.separate()
        self._leader = self._start(streams)
        timeout = self._request["timeout"]
        self._deadline = None if timeout is None else time.monotonic() + timeout

    def _start(self, streams: Sequence[int]) -> int:
        request, is_about_directory = self._request, False
        try:
            if request["cwd"] is not None:
                is_about_directory = True
                os.chdir(request["cwd"])
                is_about_directory = False
            leader = _spawn(request, streams)
        except OSError as error:
            self._report(NOT_STARTED, error.errno or 0, is_about_directory)
            os._exit(0)
        for fd in {*streams}:
            os.close(fd)
        self._processes.add(leader)
        self._report(STARTED, leader)
        return leader

    def _report(self, what: int, number: int, first: bool = False, second: bool = False) -> None:
        # the supervisor may have ended, which shows when this reads next
        with suppress(OSError):
            self._control.send(REPORT.pack(what, number, first, second))

    def run(self) -> None:
        poll = select.poll()
        for fd in (self._control.fileno(), self._child_ended):
            poll.register(fd, select.POLLIN)
        goes_on = True
        while goes_on and (self._leader or self._has_left()):
            ready = {fd for fd, _ in poll.poll(self._time_left())}
            if self._child_ended in ready:
                drain(self._child_ended)
                self._processes.reap()
                self._note_end()
            if self._control.fileno() in ready:
                goes_on = self._obey()
            if not ready:
                self._end_all()
                self._note_end(timed_out=True)
        self._end_all()

    def _time_left(self) -> float | None:
        """Milliseconds."""
        return None if self._deadline is None else max(0.0, (self._deadline - time.monotonic()) * 1000)

    def _obey(self) -> bool:
        """Do what the supervisor demands. Returns whether more can come."""
        orders = self._control.recv(_MOST_ORDERS)
        for order in orders:
            if order == KILL_TREE:
                self._end_all()
                self._note_end()
            elif self._leader:
                # it may have ended, and a sandbox may refuse a signal
                with suppress(OSError):
                    os.killpg(self._leader, order)
        return bool(orders)

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
        if self._request["runs_out"]:
            self._end_all()
        self._report(ENDED, status, timed_out, self._has_left())

    def _has_left(self) -> bool:
        """Whether something that the process has started still runs."""
        # not by a list: what a process that ends hands over may be in none for a moment
        self._processes.reap()
        return self._processes.has_children


def _close_others(*kept: int) -> None:
    last = _FIRST - 1
    for fd in sorted({*kept}):
        os.closerange(last + 1, fd)
        last = fd
    os.closerange(last + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _spawn(request: dict[str, Any], streams: Sequence[int]) -> int:
    """Start the program in a session of its own. Without a fork of this process, which would take longer than all else."""
    os.environ.update(request["env"])
    actions: list[tuple[int, int, int] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_DUP2, fd, there) for there, fd in enumerate(streams)
    ]
    if request["terminal"] is not None:
        # the first terminal that the leader of a session opens controls it
        actions[0] = (os.POSIX_SPAWN_OPEN, 0, os.ttyname(streams[0]), os.O_RDWR, 0)
    return os.posix_spawnp(
        request["argv"][0],
        request["argv"],
        os.environ,
        file_actions=actions,
        setsid=True,
        # ignored signals stay ignored in a new program, and blocked ones blocked
        setsigdef=_SIGNALS,
        setsigmask=(),
    )
