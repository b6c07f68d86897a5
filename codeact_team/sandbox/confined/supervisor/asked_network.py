"""What confined code asks about TCP, where it shares the machine's network: the one way out that its sandbox has.

Code never has a socket that could reach anything, or be reached. What it gets is one end of a connection of this machine's
loopback whose other end is here; where it connects to an address of the way out, the other end goes to the supervisor of the
sandbox, which hands it on. All other addresses are out of reach.
"""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress

from codeact_team.sandbox.confined.supervisor.asked_files import as_int, refused
from codeact_team.sandbox.confined.supervisor.listening import Asked, Listener, read_memory
from codeact_team.sandbox.system.framing import send_with_descriptors

_ADDRESS = struct.Struct("=HH4s")
_MOST_MADE = 256
"""The most sockets of code that are not connected; of more, the oldest never will be."""
_SOCKET = re.compile(r"socket:\[(\d+)\]")
_TRIES = 8


class NetworkCalls:
    """Makes the sockets that code asks for, and connects them.

    Args:
        listener: Where code asks.
        door: The socket to the supervisor of the sandbox.
        addresses: Where code may connect to.
        path: The path of the proxy's socket, which that supervisor may connect to.
    """

    def __init__(
        self, listener: Listener, door: socket.socket, addresses: Sequence[tuple[str, int]], path: str
    ) -> None:
        self._listener = listener
        self._door = door
        self._addresses = {(socket.inet_aton(address), port) for address, port in addresses}
        self.path: bytes = os.fsencode(path)
        self._made: dict[int, socket.socket] = {}
        """The other ends, by the numbers of the code's sockets."""

    def close(self) -> None:
        """Close what is held open."""
        for one in (*self._made.values(), self._door):
            one.close()

    def make(self, asked: Asked) -> None:
        """Do ``socket``: answer with a new socket. Raises an ``OSError``."""
        kind = as_int(asked.arguments[1])
        ours, theirs = _pair()
        with theirs:
            number = os.fstat(theirs.fileno()).st_ino
            theirs.setblocking(not kind & socket.SOCK_NONBLOCK)
            try:
                asked.require_waiting()
                place = self._listener.add_descriptor(
                    asked, theirs.fileno(), is_closed_on_exec=bool(kind & socket.SOCK_CLOEXEC)
                )
            except BaseException:
                ours.close()
                raise
        self._made[number] = ours
        if len(self._made) > _MOST_MADE:
            self._made.pop(next(iter(self._made))).close()
        self._listener.answer(asked, place)

    def connect(self, asked: Asked) -> int:
        """Do ``connect`` to an address of TCP. Returns its result. Raises an ``OSError``."""
        fd, address = as_int(asked.arguments[0]), asked.arguments[1]
        data = read_memory(asked, address, _ADDRESS.size)
        if len(data) < _ADDRESS.size:
            raise refused(errno.EINVAL)
        _, port, host = _ADDRESS.unpack(data)
        if (host, socket.ntohs(port)) not in self._addresses:
            raise refused(errno.ENETUNREACH)
        ours = self._made.pop(_number_of(asked, fd), None)
        if ours is None:
            raise refused(errno.EISCONN)
        with ours:
            said = {"thread": asked.thread, "address": [socket.inet_ntoa(host), socket.ntohs(port)]}
            try:
                send_with_descriptors(
                    self._door, json.dumps(said).encode(), [ours.fileno()], socket.MSG_DONTWAIT
                )
            except OSError:
                # the supervisor is busy, or gone
                raise refused(errno.ECONNREFUSED) from None
        return 0


def _number_of(asked: Asked, fd: int) -> int:
    with suppress(OSError):
        if found := _SOCKET.fullmatch(os.readlink(f"/proc/{asked.thread}/fd/{fd}")):
            return int(found[1])
    raise refused(errno.ENOTSOCK)


def _pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a connection of TCP on this machine, which nobody else has. Raises an ``OSError``."""
    with socket.socket(socket.AF_INET) as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(_TRIES)
        theirs = socket.socket(socket.AF_INET)
        try:
            theirs.connect(listening.getsockname())
            for _ in range(_TRIES):
                ours, address = listening.accept()
                # others of this machine may have connected in between
                if address == theirs.getsockname():
                    ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    return ours, theirs
                ours.close()
        except BaseException:
            theirs.close()
            raise
    theirs.close()
    raise refused(errno.EAGAIN)
