"""Pipes, and reading what comes through them."""

from __future__ import annotations

import fcntl
import os
import sys
import termios
from collections import deque
from contextlib import suppress
from itertools import islice

from codeact_team.session.protocol import KIB

# one for all: a fresh one of this size costs more than most reads
_buffer = memoryview(bytearray(256 * KIB))
_PIECES = 64
"""How much is written with one call; every system takes more pieces."""


def make_pipe(size: int | None = None) -> tuple[int, int]:
    """A pipe, of ``size`` bytes where the system grants that: the end to read and the one to write."""
    reader, writer = os.pipe()
    if size is not None and hasattr(fcntl, "F_SETPIPE_SZ"):
        with suppress(OSError):
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, size)
    return reader, writer


def read_some(fd: int) -> bytes:
    """What can be read at once, or a part of it; nothing at the end. May raise a ``BlockingIOError``."""
    return bytes(_buffer[: os.readv(fd, [_buffer])])


def unread(fd: int) -> int:
    """How many bytes are in a pipe, by either of its ends."""
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)


class PipeWriter:
    """The end of a pipe that is written to, made non-blocking, and what it has no room for yet."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self._queue: deque[memoryview] = deque()

    def __len__(self) -> int:
        """How many pieces wait."""
        return len(self._queue)

    @property
    def waiting(self) -> int:
        """How many bytes wait."""
        return sum(map(len, self._queue))

    def add(self, piece: bytes) -> None:
        """Let a piece wait for the next :meth:`flush`."""
        self._queue.append(memoryview(piece))

    def flush(self) -> bool:
        """Write what there is room for; whether all is written. A reader that is gone wants nothing more."""
        try:
            while self._queue:
                written = os.writev(self.fd, list(islice(self._queue, _PIECES)))
                while self._queue and written >= len(self._queue[0]):
                    written -= len(self._queue.popleft())
                if written:
                    self._queue[0] = self._queue[0][written:]
        except BlockingIOError:
            return False
        except BrokenPipeError:
            pass
        return True

    def close(self) -> None:
        os.close(self.fd)
