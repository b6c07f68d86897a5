"""What confined code asks about processes, where it has no namespace of its own: signals, and how many there may be.

Its processes are those below the supervising process, which adopts the ones whose parents have ended. They are found in ``/proc``.
"""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Iterator
from contextlib import suppress

from codeact_team.sandbox.confined.supervisor.asked_files import as_int, refused
from codeact_team.sandbox.confined.supervisor.listening import Asked

GO_ON = object()
"""The answer by which the kernel does a call, where nothing but its registers decides."""
_EVERYBODY = -1
_MOST_PASSES = 100
"""Passes in which new processes may turn up while a group gets a signal."""
_PID = re.compile(rb"^Pid:\t(-?\d+)$", re.M)
_TGID = re.compile(rb"^Tgid:\t(\d+)$", re.M)
_STATE, _PARENT, _GROUP = 0, 1, 2
"""Fields of ``/proc/PID/stat`` behind the name."""


def _fields(pid: int) -> list[bytes]:
    """The fields of ``/proc/PID/stat`` behind the name; none if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


class Members:
    """The processes of a sandbox: those below this one."""

    def __init__(self) -> None:
        self._me = os.getpid()

    def contain(self, pid: int) -> bool:
        """Whether a process is below this one."""
        while pid > 1:
            if not (fields := _fields(pid)):
                return False
            if (pid := int(fields[_PARENT])) == self._me:
                return True
        return False

    def __iter__(self) -> Iterator[int]:
        todo, seen = [self._me], {self._me}
        while todo:
            process = todo.pop()
            for task in self.threads_of(process):
                with suppress(OSError), open(f"/proc/{process}/task/{task}/children", "rb") as file:
                    new = {*map(int, file.read().split())} - seen
                    seen |= new
                    todo += new
                    yield from new

    def threads_of(self, pid: int) -> list[str]:
        """The threads of a process; none if it has ended."""
        try:
            return os.listdir(f"/proc/{pid}/task")
        except OSError:
            return []


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
                is_own = first == _process_of(asked)
        if not is_own:
            raise refused()
        return GO_ON

    def _kill(self, asked: Asked, target: int, number: int) -> object:
        own = _process_of(asked)
        # its group is one with nobody else, as code begins in a session of its own
        if target in (0, own):
            return GO_ON
        if target > 0:
            return self._send(asked, target, number)
        asked.require_waiting()
        return self._send_to_group(own if target == _EVERYBODY else 0, -target, number)

    def _send(self, asked: Asked, target: int, number: int) -> int:
        # what the descriptor names has this number, or has ended: then nothing gets the signal
        descriptor = os.pidfd_open(target)
        try:
            if not self._members.contain(target):
                raise refused()
            asked.require_waiting()
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
                with suppress(ProcessLookupError):
                    descriptor = os.pidfd_open(pid)
                    try:
                        fields = _fields(pid)
                        is_meant = -group == _EVERYBODY or (fields and int(fields[_GROUP]) == group)
                        if is_meant and self._members.contain(pid):
                            signal.pidfd_send_signal(descriptor, number)
                            wrong = 0
                    finally:
                        os.close(descriptor)
        return -wrong

    def _send_by_descriptor(self, asked: Asked, descriptor: int, number: int) -> int:
        if asked.arguments[2]:
            # what else is to be sent with it may pretend to be from others
            raise refused()
        target = _target_of(asked, descriptor)
        ours = os.pidfd_open(target)
        try:
            # the number of one that has been reaped is another one
            if _target_of(asked, descriptor) != target or not self._members.contain(target):
                raise refused()
            asked.require_waiting()
            signal.pidfd_send_signal(ours, number)
        finally:
            os.close(ours)
        return 0


def _target_of(asked: Asked, descriptor: int) -> int:
    """The number of the process that a descriptor of the caller names."""
    with suppress(FileNotFoundError), open(f"/proc/{asked.thread}/fdinfo/{descriptor}", "rb") as file:
        if found := _PID.search(file.read()):
            if (pid := int(found[1])) > 0:
                return pid
            raise refused(errno.ESRCH)
    raise refused(errno.EBADF)


def _process_of(asked: Asked) -> int:
    """The process of the calling thread."""
    with open(f"/proc/{asked.thread}/status", "rb") as file:
        found = _TGID.search(file.read())
    if found is None:
        raise refused(errno.ESRCH)
    return int(found[1])


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
        """As many there are, if none has ended since they were counted."""
        self._granted: set[int] = set()
        """Threads that may not have done yet what they were allowed to."""

    def do(self, asked: Asked) -> object:
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
        # one that sleeps is not about to start anything
        self._granted = {one for one in self._granted if _fields(one)[:1] == [b"R"]}
        return sum(len(self._members.threads_of(pid)) for pid in self._members) + len(self._granted)
