"""What stands in the way of a fork of the interpreter: what a fork would lack, or share. Linux only."""

from __future__ import annotations

import os
import stat
import threading
from _thread import _count as count_threads  # pyright: ignore[reportPrivateUsage]  # of threading, too
from fcntl import F_GETFL, fcntl

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_MAX_NAMES = 5
_SHARED_AND_WRITABLE = "rw-s"


def obstacle(own_descriptors: Iterable[int], own_threads: int, left_behind: int) -> str | None:
    """Why a fork would not be a copy of this process, for whoever wrote the code; ``None`` if it would.

    Args:
        own_descriptors: File descriptors of the runner's, which a fork replaces.
        own_threads: How many threads there are of the runner's beside the main one.
        left_behind: How many Python counts that are not there, but where this was forked.
    """
    try:
        return (
            _threads_of_python(own_threads + left_behind)
            or _native_threads(own_threads)
            or _descriptors(own_descriptors)
            or _shared_memory()
        )
    except OSError as error:
        return f"what it has open cannot be seen here: {error}"


def _threads_of_python(own: int) -> str | None:
    if (others := count_threads() - own) <= 0:
        return None
    names = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    return (
        f"{others} Python thread(s) run ({_listed(names) or 'unnamed'}): join them, or shut their pool down"
    )


def _native_threads(own: int) -> str | None:
    expected = 1 + own
    if len(os.listdir("/proc/self/task")) <= expected:
        return None
    # pools that prepare for a fork end their threads for it, and start them anew when they are needed; others remain
    if (child := os.fork()) == 0:
        os._exit(0)
    os.waitpid(child, 0)
    tasks = os.listdir("/proc/self/task")
    if len(tasks) <= expected:
        return None
    names = {_read(f"/proc/self/task/{task}/comm").strip() for task in tasks}
    return f"{len(tasks) - expected} native thread(s) of a library run that a fork would lose (among {_listed(sorted(names))})"


def _descriptors(own: Iterable[int]) -> str | None:
    for fd in open_descriptors(own):
        try:
            mode, access = os.fstat(fd).st_mode, fcntl(fd, F_GETFL) & os.O_ACCMODE
        except OSError:
            # the one that lists them
            continue
        if stat.S_ISREG(mode) and access != os.O_RDONLY:
            return f"{_name(fd)} is open for writing: close it (a database counts as a file)"
        if stat.S_ISSOCK(mode):
            return f"a socket is open (file descriptor {fd}): close the connection"
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISCHR(mode)):
            return f"{_name(fd)} is open (file descriptor {fd}), which cannot be copied: close it"
    return None


def _shared_memory() -> str | None:
    for line in _read("/proc/self/maps").splitlines():
        _, access, *rest = line.split(None, 5)
        if access == _SHARED_AND_WRITABLE:
            return f"memory is shared with a file or another process ({rest[-1]}): close it"
    return None


def open_descriptors(own: Iterable[int]) -> list[int]:
    """The numbers of those that are open, but for the runner's ``own``; one that is closed by now may be among them."""
    return sorted(set(map(int, os.listdir("/proc/self/fd"))) - set(own))


def _name(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(map(repr, names[:_MAX_NAMES])) + more


def _read(path: str) -> str:
    with open(path, errors="replace") as file:
        return file.read()
