"""Calls to the kernel that Python lacks. One returns -1 where it fails; :func:`checked` raises then."""

from __future__ import annotations

import ctypes
import gc
import os
import struct
import sys

PR_SET_PDEATHSIG, PR_GET_DUMPABLE, PR_SET_DUMPABLE, PR_SET_SECCOMP = 1, 3, 4, 22
PR_CAPBSET_DROP, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 24, 36, 38

CAPABILITIES = struct.pack("=II", 0x20080522, 0)
"""How version 3 of the calls about capabilities names this process."""
SIZE_OF_CAPABILITIES = 24

libc = ctypes.CDLL(None, use_errno=True)


def checked(result: int) -> int:
    """The result of a call that has not failed; else the ``OSError``."""
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def prctl(option: int, *arguments: int) -> int:
    """Control this process."""
    padded = (*arguments, 0, 0, 0, 0)[:4]
    return libc.prctl(option, *map(ctypes.c_ulong, padded))


def syscall(number: int, *arguments: int | bytes) -> int:
    """Make a system call by its number."""
    values = (value if isinstance(value, bytes) else ctypes.c_long(value) for value in arguments)
    return libc.syscall(ctypes.c_long(number), *values)


def adopt_orphans() -> int:
    """Become the parent of every descendant whose own parent ends, so that none can hide. Linux only."""
    return prctl(PR_SET_CHILD_SUBREAPER, 1) if sys.platform == "linux" else -1


def share_memory_with_forks() -> None:
    """Leave what there is now alone, so that forks share its pages, and give back what is free."""
    # a collection writes to every object, and what is written to is shared no more
    gc.collect()
    gc.freeze()
    # not every C library has it
    if trim := getattr(libc, "malloc_trim", None):
        trim(0)


def is_running(process: int) -> bool:
    """Whether there is a process of this id, of whatever user."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
