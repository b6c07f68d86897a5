"""Finding, signalling and ending whatever this process has started, however it has forked since."""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import suppress

_PAUSE = 0.02
"""Seconds after which to look again for processes that are still ending."""


def descendants() -> list[int]:
    """The processes below this one, parents first. Only where the kernel has ``/proc``."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (parent := _parent(int(name))) is not None:
            children.setdefault(parent, []).append(int(name))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return found[1:]


def _parent(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # the name before it may hold blanks and brackets
            return int(file.read().rpartition(b")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def send(number: int, leader: int) -> None:
    """Send a signal to everything below this process; elsewhere than on Linux, to the group of ``leader``."""
    targets = descendants() if sys.platform == "linux" else [-leader]
    for pid in targets:
        # it may have ended meanwhile; of a group of zombies, macOS says the latter
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_all(leader: int, child_died: int) -> None:
    """Kill everything that is left, and reap it where it is ours; ``child_died`` can be read when a child ends."""
    if sys.platform != "linux":
        # orphans do not come to us there
        send(signal.SIGKILL, leader)
    while _reap():
        send(signal.SIGKILL, leader)
        select.select([child_died], [], [], _PAUSE)
        drain(child_died)


def _reap() -> bool:
    """Reap what has ended; whether there are children left."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def notice_deaths() -> tuple[int, int]:
    """Have a pipe be written to whenever a child ends. Returns both its ends."""
    ends = os.pipe()
    for fd in ends:
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(ends[1], warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, _ignore)
    return ends


def ignore_deaths(ends: tuple[int, int]) -> None:
    """Write to that pipe no more, and close it."""
    signal.set_wakeup_fd(-1)
    for fd in ends:
        os.close(fd)


def _ignore(number: int, frame: object) -> None:
    """Unlike SIG_IGN, leaves a zombie to reap and wakes the file descriptor."""


def drain(fd: int) -> None:
    """Read away what is in a non-blocking pipe."""
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass
