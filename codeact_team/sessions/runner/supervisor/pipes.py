"""Pipes, and reading what comes through them."""

from __future__ import annotations

import fcntl
import os
import sys
import termios
from contextlib import suppress

from codeact_team.sessions.protocol import KIB

# one for all: a fresh one of this size costs more than most reads
_buffer = memoryview(bytearray(256 * KIB))


def make_pipe(size: int | None = None) -> tuple[int, int]:
    """A pipe, of ``size`` bytes where the system grants that: the end to read and the one to write."""
    reader, writer = os.pipe()
    if size is not None and hasattr(fcntl, "F_SETPIPE_SZ"):
        with suppress(OSError):
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, size)
    return reader, writer


def read_some(fd: int, limit: int = len(_buffer)) -> bytes:
    """What can be read at once, or a part of it; nothing at the end.

    Raises:
        BlockingIOError: If there is nothing yet, and ``fd`` does not block.
    """
    return bytes(_buffer[: os.readv(fd, [_buffer[:limit]])])


def unread(fd: int) -> int:
    """How many bytes are in a pipe, by either of its ends."""
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)
