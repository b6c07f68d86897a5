"""The processes below this one: finds them, however they have forked, signals them, and ends them."""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

_END_SECONDS = 1.0
"""Seconds in which new processes may turn up while others are killed: about a hundred times what finding all takes."""
_LEAST_PASSES = 20
"""Passes in which they may turn up in any case: a busy machine may take the time away from this process, too."""
_PAUSE = 0.001
_ROUNDS_OF_STOPS = 8
"""Passes in which new processes may turn up while their parents are stopped, before all that are found are killed."""
_EXIT_CODE = 49
"""The position of a field of ``/proc/PID/stat``, counted behind the name."""
_TICKS = os.sysconf("SC_CLK_TCK")
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
_LONG_AFTER = sys.maxsize
_SHARED_AND_WRITABLE = "rw-s"
_CHILDREN = "/proc/{}/task/{}/children"


def now() -> int:
    """The time in the unit of :attr:`ProcessInfo.started`."""
    return int(time.clock_gettime(_CLOCK) * _TICKS)


class ProcessInfo:
    """A living process below this one.

    Attributes:
        started: The time of its fork, in clock ticks since the machine started; far in the future if not known.
        session: The id of its session, which is the id of the process that created the session; 0 if not known.
        ancestor: The child of this process, or the watched process, that it descends from; itself if it is one.
    """

    def __init__(self, pid: int, started: int, session: int, ancestor: int) -> None:
        self.pid = pid
        self.started = started
        self.session = session
        self.ancestor = ancestor


if TYPE_CHECKING:
    Choice = Callable[[ProcessInfo], bool]
    """Selects processes."""


class ProcessTree:
    """The children of this process and all their descendants.

    They are found by the lists of children that the kernel keeps in ``/proc``. Where these cannot be read, only children
    that were added are known; they are signalled together with their process groups, and of descendants that have left
    those groups only a remaining orphan shows that some are left.

    Args:
        can_scan: Whether to search all of ``/proc`` for children if a Linux kernel keeps no lists.

    Attributes:
        can_list: Whether descendants can be found that were not added.
        has_children: Whether a child, alive or dead, was left after the last :meth:`reap`. Where this process adopts orphans,
            it has no descendant then either.
        has_killed_others: Whether processes were killed that are not children which were added.
    """

    def __init__(self, *, can_scan: bool = False) -> None:
        self._me = os.getpid()
        has_lists = os.access(_CHILDREN.format(self._me, self._me), os.R_OK)
        self._scans = can_scan and not has_lists and sys.platform == "linux"
        self.can_list: bool = has_lists or self._scans
        self.has_children: bool = False
        self._running: set[int] = set()
        self._ended: dict[int, int] = {}
        self._watched: set[int] = set()
        self.has_killed_others: bool = False

    def add(self, pid: int) -> None:
        """Track a child that was just started."""
        self._running.add(pid)
        # the status of an earlier process with that id, which was never asked for
        self._ended.pop(pid, None)

    def adopt(self, pid: int) -> bool:
        """Track an adopted child like one started here. Returns whether it is our child."""
        if pid in self._running or pid not in _children_of(self._me):
            return False
        self.add(pid)
        return True

    def watch(self, pid: int, parent: int) -> int | None:
        """Track a process that one of our children has forked like a child of ours.

        Returns a descriptor that becomes readable when it ends; ``None`` if it is no child of ``parent`` or cannot be watched.
        """
        if pid not in _children_of(parent) or not hasattr(os, "pidfd_open"):
            return None
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            return None
        self._watched.add(pid)
        return descriptor

    def forget(self, pid: int) -> None:
        """Stop tracking a process that has ended."""
        self._running.discard(pid)
        self._watched.discard(pid)
        self._ended.pop(pid, None)

    def status(self, pid: int) -> int | None:
        """Return the status of a tracked child that has ended, as :func:`os.waitpid` does, once; ``None`` otherwise."""
        return self._ended.pop(pid, None)

    def status_of_watched(self, pid: int) -> int | None:
        """Return the status of a watched process that has ended, as :func:`os.waitpid` does; ``None`` if not known."""
        if (status := self.status(pid)) is not None:
            return status
        try:
            # of a zombie that its parent has not reaped; not every process may see it
            return int(stat_fields(pid)[_EXIT_CODE]) or None
        except (OSError, ValueError, IndexError):
            return None

    def reap(self) -> set[int]:
        """Reap all children that have ended. Returns their ids."""
        reaped: set[int] = set()
        try:
            while (ended := _reap_one())[0]:
                pid, status = ended
                reaped.add(pid)
                if pid in self._running or pid in self._watched:
                    self._running.discard(pid)
                    self._ended[pid] = status
            self.has_children = True
        except ChildProcessError:
            self.has_children = False
        return reaped

    def has(self, chosen: Choice) -> bool:
        """Whether any living descendant is chosen."""
        return any(map(chosen, self._alive()))

    def interrupt(self, leader: int) -> None:
        """Send SIGINT to the process group of a tracked child."""
        try:
            os.killpg(leader, signal.SIGINT)
        except ProcessLookupError:
            # it has ended, or does not lead a group yet
            if leader in self._running:
                os.kill(leader, signal.SIGINT)

    def kill_all(self) -> None:
        """Send SIGKILL to every descendant, once."""
        for process in list(self._alive()):
            self._signal(process.pid, signal.SIGKILL)

    def end(self, chosen: Choice) -> bool:
        """Kill the chosen descendants, and those that they start meanwhile. Returns whether none is left.

        Some are left if new ones turned up again and again for a second. Those that were killed are waited for as long as that
        takes, which may be long on a busy machine: none survives.
        """
        deadline = time.monotonic() + _END_SECONDS
        killed: set[int] = set()
        passes = 0
        while passes < _LEAST_PASSES or time.monotonic() < deadline:
            # a process that forks and ends, again and again, may never be seen alive, but leaves something to reap
            reaped = self.reap()
            targets = self._stopped(chosen, killed)
            # a process that ends during the pass hands its children to us, which were not seen there before
            if not targets and not reaped and not self.reap():
                return True
            self.has_killed_others = self.has_killed_others or not targets <= self._running
            for pid in targets:
                self._signal(pid, signal.SIGKILL)
            if targets | reaped <= killed:
                # nothing new: the time that dying takes does not count
                deadline = time.monotonic() + _END_SECONDS
            else:
                passes += 1
            killed |= targets
            time.sleep(_PAUSE)
        return False

    def end_all(self, spared: Collection[int] = ()) -> bool:
        """Kill all descendants but the children ``spared``, and what these have started. See :meth:`end`."""
        return self.end(lambda process: process.ancestor not in spared) and self._has_no_child_but(spared)

    def _stopped(self, chosen: Choice, killed: set[int]) -> set[int]:
        """Stop the chosen processes: then they cannot fork, and keep their places in the process limit occupied."""
        stopped: set[int] = set()
        for _ in range(_ROUNDS_OF_STOPS):
            before = len(stopped)
            for process in self._alive():
                # it takes a moment to die, and a sandbox may not show the dead
                dying = process.started == _LONG_AFTER and process.pid in killed
                if process.pid not in stopped and not dying and chosen(process):
                    # at once: each one that runs on takes time from this process
                    self._signal(process.pid, signal.SIGSTOP)
                    stopped.add(process.pid)
            if len(stopped) == before:
                break
        return stopped

    def _signal(self, pid: int, number: int) -> None:
        # it may have ended, and a sandbox may refuse to signal a process that has; so does macOS for zombies
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid if self.can_list else -pid, number)

    def _alive(self) -> Iterator[ProcessInfo]:
        if not self.can_list:
            yield from [ProcessInfo(pid, _LONG_AFTER, pid, pid) for pid in self._running]
            return
        for pid, ancestor in self.below():
            if process := _process_info(pid, ancestor):
                yield process

    def below(self) -> Iterator[tuple[int, int]]:
        """Each descendant, living or dead, if they can be listed, with its :attr:`ProcessInfo.ancestor`."""
        found = [self._me]
        ancestors = {self._me: self._me}
        scanned = _all_children() if self._scans else {}
        for pid in found:
            for child in scanned.get(pid, []) if self._scans else _children_of(pid):
                if child not in ancestors:
                    is_ancestor = pid == self._me or child in self._watched
                    ancestors[child] = child if is_ancestor else ancestors[pid]
                    found.append(child)
                    yield child, ancestors[child]

    def _has_no_child_but(self, spared: Collection[int]) -> bool:
        # some may have died since
        self.reap()
        return not self.has_children if not spared else {*spared}.issuperset(_children_of(self._me))


def _reap_one() -> tuple[int, int]:
    """Reap a child that has ended. Returns its id and status; the id 0 if none has. Raises a ``ChildProcessError``."""
    if not hasattr(os, "waitid"):
        # macOS has it from Python 3.13 on
        return os.waitpid(-1, os.WNOHANG)
    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    # by a call that could block: sandboxes that count processes count only those as gone
    return os.waitpid(ended.si_pid, 0) if ended else (0, 0)


def notice_ended_children() -> tuple[int, int]:
    """Make a pipe to which this process writes whenever a child ends. Returns its two ends, both non-blocking."""
    ends = os.pipe()
    for fd in ends:
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(ends[1], warn_on_full_buffer=False)
    # unlike SIG_IGN, a handler leaves a zombie to reap and wakes the descriptor
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    # calls that are asked of a listener would be interrupted, even those of which nobody expects it, such as kill and fork
    signal.siginterrupt(signal.SIGCHLD, False)
    return ends


def drain(fd: int) -> None:
    """Empty a non-blocking pipe."""
    with suppress(BlockingIOError):
        while os.read(fd, 4096):
            pass


def shared_memory_of(process: int | str) -> str | None:
    """Why a fork of a process, or of this one, ``"self"``, would have memory in common with it; ``None`` if it would not."""
    try:
        maps = _read(f"/proc/{process}/maps").decode(errors="replace")
    except OSError as error:
        return f"its memory cannot be seen: {error.strerror}"
    for line in maps.splitlines():
        _, access, *rest = line.split(None, 5)
        if access == _SHARED_AND_WRITABLE:
            return f"memory is shared with a file or another process ({rest[-1]}): close it"
    return None


def processor_ticks(pid: int) -> int:
    """The processor time, in clock ticks, of a process and of its children that it has reaped. Raises an ``OSError``."""
    return sum(map(int, stat_fields(pid)[11:15]))


def _children_of(pid: int) -> list[int]:
    children: list[int] = []
    # a process, or one of its threads, may have ended, or be hidden
    with suppress(OSError):
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):
                children += map(int, _read(_CHILDREN.format(pid, task)).split())
    return children


def _all_children() -> dict[int, list[int]]:
    """The children of every process."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                children.setdefault(int(stat_fields(int(name))[1]), []).append(int(name))
    return children


def _process_info(pid: int, ancestor: int) -> ProcessInfo | None:
    """The known facts of a process; ``None`` if it is dead."""
    try:
        fields = stat_fields(pid)
    except (FileNotFoundError, ProcessLookupError):
        return None
    except PermissionError:
        # some sandboxes show a process only once it has asked them for something, and none that has ended
        return None if _has_ended(pid) else ProcessInfo(pid, _LONG_AFTER, 0, ancestor)
    state, session, threads, started = fields[0], fields[3], fields[17], fields[19]
    # a process whose first thread has ended, but not the others, looks like a zombie
    if state in (b"Z", b"X") and int(threads) <= 1:
        return None
    return ProcessInfo(pid, int(started), int(session), ancestor)


def _has_ended(pid: int) -> bool:
    if not hasattr(os, "pidfd_open"):
        return False
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    try:
        return bool(select.select([descriptor], (), (), 0)[0])
    finally:
        os.close(descriptor)


def stat_fields(pid: int) -> list[bytes]:
    """The fields of ``/proc/PID/stat`` behind the name. Raises an ``OSError`` if there is no such process."""
    # the name before them may contain blanks and brackets
    return _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()


def _read(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = b""
        while piece := os.read(fd, 65536):
            data += piece
    finally:
        os.close(fd)
    return data
