"""The relay: a process of its own that carries bytes between the connections of code and a unix socket of the host.

One loop, no threads, bounded buffers. It is handed both ends of a connection, carries until both have ended, and knows nothing
else. Who stops reading stops nobody but the other end. It copies by ``recv`` and ``send``: ``splice``, by a pipe, was measured
to take twice as long.
"""

from __future__ import annotations

import select
import socket
import struct
from contextlib import suppress

from codeact_team.sandbox.system.framing import receive_with_descriptors

MAX_CONNECTIONS = 1000
"""More at a time are refused."""
_PIECE = 64 * 1024
"""The most bytes that wait in one direction of a connection."""
_RESET = struct.pack("=ii", 1, 0)
"""For ``SO_LINGER``: whoever is at the other end finds the connection reset, and does not take it for ended in order."""


def reset(connection: socket.socket) -> None:
    """Close a connection as one that has failed."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    connection.close()


class _End:
    """One end of a connection.

    Attributes:
        unsent: What has come from the other end, and could not be sent yet.
        is_read: Whether more can come from this end.
        watched: The events for which it is registered.
    """

    __slots__ = ("is_read", "other", "socket", "unsent", "watched")

    def __init__(self, fd: int) -> None:
        self.socket: socket.socket = socket.socket(fileno=fd)
        self.socket.setblocking(False)
        self.other: _End = self
        self.unsent: bytes | memoryview = b""
        self.is_read: bool = True
        self.watched: int = 0


class Relay:
    """Carries the connections whose ends come through ``control``, two descriptors with each message, until that is closed."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._poll = select.epoll()
        self._poll.register(control.fileno(), select.EPOLLIN)
        self._ends: dict[int, _End] = {}
        self._buffer = memoryview(bytearray(_PIECE))

    def serve(self) -> None:
        """Carry. Returns when nothing can come any more."""
        while True:
            for fd, events in self._poll.poll():
                if fd == self._control.fileno():
                    if not self._take():
                        return
                # an event before this one may have ended it
                elif (end := self._ends.get(fd)) is not None:
                    self._move(end, events)

    def _take(self) -> bool:
        """Take a connection. Returns whether there may be more."""
        data, descriptors, _ = receive_with_descriptors(self._control, 1)
        if not data:
            return False
        ends = [_End(fd) for fd in descriptors]
        # where this process may have no more descriptors, not all arrive
        if len(ends) != 2 or len(self._ends) >= 2 * MAX_CONNECTIONS:
            for end in ends:
                reset(end.socket)
            return True
        one, two = ends
        one.other, two.other = two, one
        for end in ends:
            self._ends[end.socket.fileno()] = end
            self._watch(end)
        return True

    def _move(self, end: _End, events: int) -> None:
        """Move what can be moved without waiting."""
        try:
            # each on its own: who cannot send now may still receive, and else both ends could wait for each other
            if end.unsent:
                with suppress(BlockingIOError):
                    self._send(end)
            if end.is_read and not end.other.unsent and events & ~select.EPOLLOUT:
                with suppress(BlockingIOError):
                    self._receive(end, events)
        except OSError:
            self._end(end)
            return
        if end.is_read or end.other.is_read or end.unsent or end.other.unsent:
            self._watch(end)
            self._watch(end.other)
        else:
            self._end(end)

    def _send(self, end: _End) -> None:
        end.unsent = end.unsent[end.socket.send(end.unsent) :]

    def _receive(self, end: _End, events: int) -> None:
        size = end.socket.recv_into(self._buffer)
        other = end.other
        if not size:
            if events & select.EPOLLHUP and other.is_read:
                # in order, each direction ends by itself
                raise ConnectionResetError
            end.is_read = False
            other.socket.shutdown(socket.SHUT_WR)
            return
        sent = 0
        with suppress(BlockingIOError):
            sent = other.socket.send(self._buffer[:size])
        other.unsent = bytes(self._buffer[sent:size])

    def _watch(self, end: _End) -> None:
        """Wait for what this end can do next. One that can do nothing is not registered: its end would be told again and again."""
        wanted = select.EPOLLIN if end.is_read and not end.other.unsent else 0
        if end.unsent:
            wanted |= select.EPOLLOUT
        if wanted == end.watched:
            return
        fd = end.socket.fileno()
        if not wanted:
            self._poll.unregister(fd)
        elif not end.watched:
            self._poll.register(fd, wanted)
        else:
            self._poll.modify(fd, wanted)
        end.watched = wanted

    def _end(self, end: _End) -> None:
        """Close both ends: as failed, unless everything has been carried."""
        is_whole = not (end.is_read or end.other.is_read or end.unsent or end.other.unsent)
        for one in (end, end.other):
            del self._ends[one.socket.fileno()]
            if is_whole:
                one.socket.close()
            else:
                reset(one.socket)
