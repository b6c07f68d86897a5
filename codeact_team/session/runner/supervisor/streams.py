"""The supervisor's event loop, its pipes, the stream to the host, and the output of the code's programs."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import termios
import time
from collections import deque
from contextlib import suppress
from functools import partial
from itertools import islice

from codeact_team.sandbox.system.framing import FrameReader, frame
from codeact_team.sandbox.system.process_tree import drain, notice_ended_children
from codeact_team.session.protocol import FROM_HOST, KIB, Kind, of_fork

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MOMENT = 1
"""Milliseconds by which output may be late: too few to be noticed."""

# one for all: a new buffer of this size costs more than most reads
_buffer = memoryview(bytearray(256 * KIB))
_PIECES = 64
"""The most pieces that one call writes; every system accepts that many."""

_OUTPUT_PIPE = 256 * KIB
"""A larger pipe is no faster, and all pipes of a user together are limited, to 64 MiB by default."""
_KEPT_OUTPUT = 256 * KIB
"""Bytes written between two blocks that are kept for the second one."""
_ABOVE_STANDARD = 20
"""Above the descriptors that programs use by habit."""
_OWN_DESCRIPTOR = "/proc/self/fd/{}"


class PollLoop:
    """Calls a handler whenever a descriptor can be read or written, or a time has come."""

    def __init__(self) -> None:
        self._timers: dict[Callable[[], object], float] = {}
        """When to call each."""
        self._all = select.poll()
        self._urgent = select.poll()
        self._handlers: dict[int, Callable[[], object]] = {}
        self._patient = False

    def on_readable(self, fd: int, handler: Callable[[], object], *, can_wait: bool = False) -> None:
        """Call ``handler`` when there is something to read. For ``can_wait``, see :meth:`wait_for_more`."""
        self._handlers[fd] = handler
        self._all.register(fd, select.POLLIN)
        if not can_wait:
            self._urgent.register(fd, select.POLLIN)

    def on_child_end(self, handler: Callable[[], None]) -> None:
        """Call ``handler`` when a child may have ended. From now on no other signal reaches this process."""
        reader, _ = notice_ended_children()
        signals = signal.valid_signals() - {signal.SIGCHLD, signal.SIGKILL, signal.SIGSTOP}
        for number in signals:
            # the C library keeps some for itself
            with suppress(OSError):
                signal.signal(number, signal.SIG_IGN)
        # blocked, too, so that a signal to a child that is not ready yet is not lost
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)

        def wake() -> None:
            drain(reader)
            handler()

        self.on_readable(reader, wake)

    def flush(self, pipe: PipeWriter, written: Callable[[], None] | None = None) -> None:
        """Write what the pipe has room for, and the rest as soon as it has room. Calls ``written`` then."""
        if pipe.write():
            if pipe.fd in self._handlers:
                self.forget(pipe.fd)
            if written is not None:
                written()
            return
        self._handlers[pipe.fd] = partial(self.flush, pipe, written)
        for poll in (self._all, self._urgent):
            poll.register(pipe.fd, select.POLLOUT)

    def call_later(self, seconds: float, handler: Callable[[], object]) -> None:
        """Call ``handler`` once after some seconds, unless :meth:`cancel` comes first."""
        self._timers[handler] = time.monotonic() + seconds

    def cancel(self, handler: Callable[[], object]) -> None:
        """Do not call ``handler`` any more when its time comes."""
        self._timers.pop(handler, None)

    def _milliseconds(self) -> float | None:
        """Until the next timer."""
        if not self._timers:
            return None
        return max(0.0, (min(self._timers.values()) - time.monotonic()) * 1000)

    def _call_due(self) -> None:
        now = time.monotonic()
        for handler in [handler for handler, when in self._timers.items() if when <= now]:
            # an earlier one may have cancelled it
            if self._timers.pop(handler, None) is not None:
                handler()

    def wait_for_more(self) -> None:
        """Delay handlers that can wait for a moment, unless another event comes: larger pieces cost less."""
        self._patient = True

    def forget(self, fd: int) -> None:
        """Call no handler for ``fd`` any more. Must be called before ``fd`` is closed."""
        if self._handlers.pop(fd, None):
            for poll in (self._all, self._urgent):
                with suppress(KeyError):
                    poll.unregister(fd)

    def run(self) -> None:
        while True:
            ready = self._urgent.poll(_MOMENT) if self._patient else []
            self._patient = False
            for fd, _ in ready or self._all.poll(self._milliseconds()):
                # an earlier handler may have closed it
                if handler := self._handlers.get(fd):
                    handler()
            if self._timers:
                self._call_due()


def is_readable(fd: int) -> bool:
    """Whether there is something to read."""
    return bool(select.select([fd], (), (), 0)[0])


def make_pipe(size: int | None = None) -> tuple[int, int]:
    """Make a pipe, with room for ``size`` bytes if the system grants it. Returns the end to read and the one to write."""
    reader, writer = os.pipe()
    if size is not None and hasattr(fcntl, "F_SETPIPE_SZ"):
        with suppress(OSError):
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, size)
    return reader, writer


def read_available(fd: int) -> bytes:
    """Read what is available, or a part of it; ``b""`` at the end. May raise a ``BlockingIOError``."""
    return bytes(_buffer[: os.readv(fd, [_buffer])])


def unread_bytes(fd: int) -> int:
    """Return the number of bytes in a pipe, given one of its ends."""
    return int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), sys.byteorder)


class PipeWriter:
    """The writing end of a pipe, made non-blocking, and a queue of what the pipe has no room for yet."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd: int = fd
        self._queue: deque[bytes | memoryview] = deque()

    def __len__(self) -> int:
        """The number of pieces that wait."""
        return len(self._queue)

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queue))

    def add(self, piece: bytes) -> None:
        """Queue a piece for the next :meth:`write`."""
        self._queue.append(piece)

    def write(self) -> bool:
        """Write what there is room for. Returns whether all is written, or has no reader any more."""
        queue = self._queue
        try:
            while queue:
                written = os.writev(self.fd, list(islice(queue, _PIECES)))
                while queue and written >= len(queue[0]):
                    written -= len(queue.popleft())
                if written:
                    queue[0] = memoryview(queue[0])[written:]
        except BlockingIOError:
            return False
        except BrokenPipeError:
            pass
        return True

    def close(self) -> None:
        os.close(self.fd)


class HostGone(Exception):
    """The host has closed its end of the stream."""


class HostConnection:
    """The byte stream to the host, which was this process's stdin and stdout; these, and stderr, are empty from now on.

    Attributes:
        fd: The descriptor to read from.
        out: The frames that wait for a slow host.
    """

    def __init__(self) -> None:
        self.fd: int = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, _ABOVE_STANDARD)
        self.out: PipeWriter = PipeWriter(fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, _ABOVE_STANDARD))
        self._room = select.poll()
        self._room.register(self.out.fd, select.POLLOUT)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        if null > 2:
            os.close(null)

    def read(self) -> bytes:
        """Read what has come; ``b""`` if that is nothing. Raises :class:`HostGone` at the end."""
        try:
            data = read_available(self.fd)
        except BlockingIOError:
            # both ends may be one socket, whose writing end does not block
            return b""
        if not data:
            raise HostGone
        return data

    def write(self, data: bytes) -> None:
        """Write all of ``data``. Waits for a slow host. Raises :class:`HostGone` if the host is gone."""
        self.out.add(data)
        try:
            while not self.out.write():
                self._room.poll()
        except OSError as error:
            raise HostGone from error


class HostChannel:
    """The frames of one session to and from the host. Those of a fork are carried by frames of the main session.

    Attributes:
        held: Frames that are sent together with the next ones.
    """

    def __init__(self, connection: HostConnection, number: int) -> None:
        self._connection = connection
        self._number = number
        self._frames = FrameReader(FROM_HOST)
        self.held: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The frames that are complete with ``data``. Raises a ``ProtocolError``."""
        return self._frames.feed(data)

    def hold(self, *pieces: bytes) -> None:
        """Send frames together with the next ones: one message is faster than two."""
        self.held += pieces

    def send(self, *pieces: bytes) -> None:
        """Send the held frames and these. Raises :class:`HostGone`."""
        data = b"".join((*self.held, *pieces))
        self.held.clear()
        self._connection.write(of_fork(self._number, data) if self._number else data)


class OutputPipe:
    """The pipe that the code's programs have as stdout and stderr.

    Attributes:
        fd: The end to read.
    """

    def __init__(self) -> None:
        self.fd: int
        self.fd, self._inner = make_pipe(_OUTPUT_PIPE)
        os.set_blocking(self.fd, False)
        self._kept = bytearray()
        self._dropped = 0

    def open(self) -> int:
        """Open the writing end for a program; the caller closes it. Raises an ``OSError`` if there are no descriptors left.

        Programs that inherit one descriptor share its modes and its owner for signals, so each gets its own.
        """
        try:
            return os.open(_OWN_DESCRIPTOR.format(self._inner), os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            # without /proc, only the modes can be restored
            fcntl.fcntl(self._inner, fcntl.F_SETFL, 0)
            return os.dup(self._inner)

    def read(self) -> bytes:
        """Read what is available: as much as the pipe holds."""
        try:
            return read_available(self.fd)
        except BlockingIOError:
            return b""

    def read_frame(self) -> bytes:
        """Read what is available, as a frame; ``b""`` if there is nothing."""
        data = self.read()
        return frame(Kind.OUTPUT, data) if data else b""

    def keep(self) -> None:
        """Read what is written between two blocks, and keep the newest part of it for the next block."""
        self._kept += self.read()
        if (excess := len(self._kept) - _KEPT_OUTPUT) > 0:
            del self._kept[:excess]
            self._dropped += excess

    def take_kept(self) -> bytes:
        """Return the kept output as a frame; ``b""`` if there is none."""
        if not self._kept:
            return b""
        note = f"[{self._dropped} bytes written between the blocks are left out]\n" if self._dropped else ""
        kept = frame(Kind.OUTPUT, note.encode(), bytes(self._kept))
        self._kept, self._dropped = bytearray(), 0
        return kept

    def close(self) -> None:
        for fd in (self.fd, self._inner):
            os.close(fd)

    def discard(self) -> None:
        """Drop what has been written. No process may write any more."""
        while self.read():
            pass
        self._kept, self._dropped = bytearray(), 0
