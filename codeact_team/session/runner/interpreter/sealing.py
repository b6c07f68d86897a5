"""Keeps an interpreter that is only there to be forked from the code that runs in its forks. Linux only."""

from __future__ import annotations

import ctypes
import os
import signal
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _FILTER = 4, 22, 2
_LANDLOCK_RESTRICT_SELF = 446
_libc = ctypes.CDLL(None, use_errno=True)


def seal(instructions: bytes, *, hide: bool) -> Iterable[int]:
    """Refuse the system calls that are aimed at this process, here and in all its forks, and take no signals here.

    Args:
        instructions: The program of the system call filter.
        hide: Whether nobody is to read or trace this process either; needless for one outside the domain of its forks.

    Returns:
        The signals that it has not taken before either, for :func:`take_signals`.

    Raises:
        OSError: If the kernel does not do that.
    """
    buffer = ctypes.create_string_buffer(instructions)
    program = ctypes.create_string_buffer(
        struct.pack("@HP", len(instructions) // 8, ctypes.addressof(buffer))
    )
    if hide:
        _control(_PR_SET_DUMPABLE, 0)
    _control(_PR_SET_SECCOMP, _FILTER, ctypes.addressof(program))
    # a file can send one to its owner, whoever that is
    return signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())


def take_signals(but: Iterable[int]) -> None:
    """Take signals again, in a fork, but for those that were not taken before :func:`seal`. None waits there."""
    signal.pthread_sigmask(signal.SIG_SETMASK, but)


def show() -> None:
    """Undo, in a fork, that nobody may read this process: the code may do what it likes with itself."""
    _control(_PR_SET_DUMPABLE, 1)


def require_sealed(process: int) -> None:
    """Raise an ``OSError`` if code that runs here could change the memory of a process.

    To read it would tell nothing: its forks have all that it has.
    """
    try:
        os.close(os.open(f"/proc/{process}/mem", os.O_WRONLY))
    except OSError:
        return
    raise OSError("the code could change the process that interpreters are forked from")


def enter_domain(ruleset: int) -> None:
    """Keep this process, and all that it starts, from those that are not in the same Landlock domain."""
    _checked(_libc.syscall(*map(ctypes.c_long, (_LANDLOCK_RESTRICT_SELF, ruleset, 0))))


def _control(option: int, *arguments: int) -> None:
    _checked(_libc.prctl(option, *map(ctypes.c_ulong, (*arguments, 0, 0, 0)[:4])))


def _checked(result: int) -> None:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
