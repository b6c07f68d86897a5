"""What confined code asks about processes, where it has no namespace of its own: signals, and how many there may be.

Its processes are those below the supervising process, which adopts the ones whose parents have ended. They are found in ``/proc``.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress

from codeact_team.sandbox.confined.supervisor.asked_files import as_int, entry_of, process_of, refused
from codeact_team.sandbox.confined.supervisor.listening import Asked
from codeact_team.sandbox.system.process_tree import ProcessTree, stat_fields

GO_ON = object()
"""The answer by which the kernel does a call, where nothing but its registers decides."""
_EVERYBODY = -1
_MOST_PASSES = 100
"""Passes in which new processes may turn up while a group gets a signal."""
_PID = re.compile(rb"^Pid:\t(-?\d+)$", re.M)
_STARTING = (b"R", b"D")
"""States of a thread that may be in the midst of a call."""
_PARENT, _GROUP = 1, 2
"""Fields of ``/proc/PID/stat`` behind the name, of which the first is the state."""


class Members:
    """The processes of a sandbox: those below this one."""

    def __init__(self) -> None:
        self._me = os.getpid()
        self._tree = ProcessTree(can_scan=True)

    def contain(self, pid: int) -> bool:
        """Whether a process is below this one."""
        with suppress(OSError):
            while pid > 1:
                if (pid := int(stat_fields(pid)[_PARENT])) == self._me:
                    return True
        return False

    def __iter__(self) -> Iterator[int]:
        return (pid for pid, _ in self._tree.below())


class Signals:
    """Does the calls of :data:`~.calls.OF_SIGNALS`, whose targets have to be ``members``."""

    def __init__(self, members: Members) -> None:
        self._members = members

    def do(self, name: str, asked: Asked) -> object:
        """Do a call. Returns its result, or :data:`GO_ON`. Raises an ``OSError``."""
        first, number = as_int(asked.arguments[0]), as_int(asked.arguments[1])
        match name:
            case "kill":
                return self._kill(asked, first, number)
            case "pidfd_send_signal":
                return self._send_by_descriptor(asked, first, number)
            case "tkill":
                is_own = first == asked.thread
            case _:
                # the kernel looks whether the thread is one of the process, which waits here
                is_own = first == process_of(asked)
        if not is_own:
            raise refused()
        return GO_ON

    def _kill(self, asked: Asked, target: int, number: int) -> object:
        own = process_of(asked)
        asked.require_waiting()
        # no process outside can be in its group, as code begins in a session of its own
        if target in (0, own):
            return GO_ON
        if target > 0:
            return self._send(target, number)
        return self._send_to_group(own if target == _EVERYBODY else 0, -target, number)

    def _send(self, target: int, number: int, is_meant: Callable[[], bool] = lambda: True) -> int:
        # if the process ends, another may get its number, but nothing gets the signal
        descriptor = os.pidfd_open(target)
        try:
            if not (self._members.contain(target) and is_meant()):
                raise refused()
            signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)
        return 0

    def _send_to_group(self, spared: int, group: int, number: int) -> int:
        """Signal a group, or everybody but the process that is ``spared``. Meanwhile nothing starts but what may already."""
        done, wrong = {spared}, errno.ESRCH
        for _ in range(_MOST_PASSES):
            if not (new := {*self._members} - done):
                break
            done |= new
            for pid in new:
                # of another group, or ended
                with suppress(PermissionError, ProcessLookupError):
                    self._send(pid, number, lambda pid=pid: group == -_EVERYBODY or _group_of(pid) == group)
                    wrong = 0
        return -wrong

    def _send_by_descriptor(self, asked: Asked, descriptor: int, number: int) -> int:
        if asked.arguments[2]:
            # what else is to be sent with it may pretend to be from others
            raise refused()
        if asked.arguments[3] & 0xFFFFFFFF:
            raise refused(errno.EINVAL)
        target = _target_of(asked, descriptor)

        def is_same() -> bool:
            # the number of one that has been reaped is another one
            again = _target_of(asked, descriptor)
            asked.require_waiting()
            return again == target

        return self._send(target, number, is_same)


def _group_of(pid: int) -> int:
    return int(stat_fields(pid)[_GROUP])


def _target_of(asked: Asked, descriptor: int) -> int:
    """The number of the process that a descriptor of the caller names."""
    pid = int(entry_of(asked, f"fdinfo/{descriptor}", _PID, errno.EBADF))
    if pid < 0:
        raise refused(errno.ESRCH)
    return pid


class Starts:
    """Answers the calls of :data:`~.calls.OF_CHILDREN`: a sandbox has so many processes and threads at most.

    All of them are counted only when there may be too many.

    Args:
        members: Its processes.
        most: The most of them, with their threads.
    """

    def __init__(self, members: Members, most: int) -> None:
        self._members = members
        self._most = most
        self._at_most = most
        """How many there can be by now: those that were counted last, and all that were allowed since."""
        self._granted: set[int] = set()
        """Threads that may not have done yet what they were allowed to."""

    def do(self, _: str, asked: Asked) -> object:
        """Returns :data:`GO_ON`, or raises an ``OSError``."""
        if self._at_most >= self._most:
            self._at_most = self._count()
        if self._at_most >= self._most:
            raise refused(errno.EAGAIN)
        self._at_most += 1
        self._granted.add(asked.thread)
        return GO_ON

    def note(self, thread: int) -> None:
        """Note that a thread asks again, so it has done what it was allowed to."""
        self._granted.discard(thread)

    def _count(self) -> int:
        self._granted = {*filter(_may_be_starting, self._granted)}
        return sum(map(_threads_of, self._members)) + len(self._granted)


def _may_be_starting(thread: int) -> bool:
    try:
        # it may wait for another's start, as they lock the memory that they copy; one that sleeps is not about to start anything
        return stat_fields(thread)[0] in _STARTING
    except OSError:
        return False


def _threads_of(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0
