"""The two streams that the supervisor is between: frames to and from the host, and what the code's programs write."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator

from codeact_team.session.protocol import FROM_HOST, KIB, FrameReader, Kind, frame, of_branch
from codeact_team.session.runner.supervisor.pipes import make_pipe, read_some

_PIPE_SIZE = 256 * KIB
"""More is no faster, and what all pipes of a user may hold together is limited: to 64 MiB by default."""
_KEPT = 256 * KIB
"""How much of what is written between two blocks is kept for the second."""
_ABOVE_STANDARD = 20
"""Above the numbers that the code's programs use by habit."""


_OWN = "/proc/self/fd/{}"


class HostGone(Exception):
    """The host has closed its end of the stream."""


class Host:
    """The stream to the host, which was this process's stdin and stdout. Those are empty afterwards, as is stderr.

    Attributes:
        fd: Where its frames are read.
        held: What goes with the next that is sent.
    """

    def __init__(self) -> None:
        self.fd = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, _ABOVE_STANDARD)
        self._out = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, _ABOVE_STANDARD)
        self._frames = FrameReader(FROM_HOST)
        self.held: list[bytes] = []
        for fd in (self.fd, self._out):
            os.set_blocking(fd, True)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in (0, 1, 2):
            os.dup2(null, fd)
        if null > 2:
            os.close(null)

    def receive(self) -> Iterator[tuple[Kind, bytes]]:
        """The frames that have come. Raises :class:`HostGone` if nothing will come any more."""
        data = read_some(self.fd)
        if not data:
            raise HostGone
        return self._frames.feed(data)

    def hold(self, *pieces: bytes) -> None:
        """Let frames go with the next that are sent: one message is faster than two."""
        self.held += pieces

    def send(self, *pieces: bytes) -> None:
        """Send what is held, and these frames. Waits for a slow host; raises :class:`HostGone` if it is gone."""
        rest = memoryview(b"".join((*self.held, *pieces)))
        self.held.clear()
        try:
            while rest:
                rest = rest[os.write(self._out, rest) :]
        except OSError as error:
            raise HostGone from error


class BranchHost:
    """The stream of a branch, in pieces that go through that to the host.

    Attributes:
        held: What goes with the next that is sent.
    """

    def __init__(self, host: Host, number: int) -> None:
        self._host = host
        self._number = number
        self._frames = FrameReader(FROM_HOST)
        self.held: list[bytes] = []

    def feed(self, piece: bytes) -> Iterator[tuple[Kind, bytes]]:
        """The frames that are complete with a piece that has come."""
        return self._frames.feed(piece)

    def hold(self, *pieces: bytes) -> None:
        """See :meth:`Host.hold`."""
        self.held += pieces

    def send(self, *pieces: bytes) -> None:
        """See :meth:`Host.send`."""
        data = b"".join((*self.held, *pieces))
        self.held.clear()
        self._host.send(of_branch(self._number, data))


class Output:
    """The one pipe that the code's programs have as stdout and stderr.

    Attributes:
        fd: Where it is read.
    """

    def __init__(self) -> None:
        self.fd, self._inner = make_pipe(_PIPE_SIZE)
        os.set_blocking(self.fd, False)
        self._kept = bytearray()
        self._dropped = 0

    def open(self) -> int:
        """Open it for a program, which the caller closes. Raises an ``OSError`` if there are not enough descriptors.

        What inherits a descriptor shares its modes and its owner for signals, so each program gets one of its own.
        """
        try:
            return os.open(_OWN.format(self._inner), os.O_WRONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            # without a /proc, nothing but the modes can be put back
            fcntl.fcntl(self._inner, fcntl.F_SETFL, 0)
            return os.dup(self._inner)

    def read(self) -> bytes:
        """What there is to read: as much as the pipe holds."""
        try:
            return read_some(self.fd)
        except BlockingIOError:
            return b""

    def take(self) -> bytes:
        """What there is to read, as a frame, or nothing."""
        data = self.read()
        return frame(Kind.OUTPUT, data) if data else b""

    def keep(self) -> None:
        """Read what is written between two blocks, the newest of it to be taken by the next."""
        self._kept += self.read()
        if (excess := len(self._kept) - _KEPT) > 0:
            del self._kept[:excess]
            self._dropped += excess

    def take_kept(self) -> bytes:
        """What has been kept, as a frame, or nothing."""
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
        """Drop what has been written. Nobody may write any more."""
        while self.read():
            pass
        self._kept, self._dropped = bytearray(), 0
