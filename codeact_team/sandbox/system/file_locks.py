"""Locks on files that hold as long as a file is open, and that others can see without taking them."""

from __future__ import annotations

import fcntl
import struct
import sys

# as in <fcntl.h>: type, whence, start, length, process
_FLOCK = struct.Struct("hhqqi4x")


def lock(descriptor: int) -> bool:
    """Lock an open file against all others that do; whether nobody else had it locked."""
    try:
        if sys.platform == "linux":
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0))
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_until_free(descriptor: int) -> None:
    """Wait until nobody has a file locked that is open here for reading, and lock it for reading. Blocks."""
    if sys.platform == "linux":
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW, _FLOCK.pack(fcntl.F_RDLCK, 0, 0, 0, 0))
    else:
        fcntl.flock(descriptor, fcntl.LOCK_SH)


def is_locked(descriptor: int) -> bool:
    """Whether a file that is open here for reading is locked by somebody else."""
    if sys.platform == "linux":
        wanted = _FLOCK.pack(fcntl.F_RDLCK, 0, 0, 0, 0)
        return _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, wanted))[0] != fcntl.F_UNLCK
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False
