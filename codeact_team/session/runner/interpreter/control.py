"""The interpreter's end of the socket by which it gets what its forks need, and by which a fork says that it lives."""

from __future__ import annotations

import struct

# without the module around it, which the code may not need
from _socket import AF_UNIX, MSG_CMSG_CLOEXEC, MSG_DONTWAIT, SCM_RIGHTS, SOCK_STREAM, SOL_SOCKET, socket

from codeact_team.session.protocol import BORN

_SIZE = 4


class Control:
    """The socket with the number ``fd``, whatever that refers to."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._socket = socket(AF_UNIX, SOCK_STREAM, 0, fd)

    def receive(self, count: int) -> tuple[int, ...]:
        """So many descriptors, which were sent together before.

        Raises:
            OSError: If they are not there.
        """
        _, data, _, _ = self._socket.recvmsg(1, 1024, MSG_DONTWAIT | MSG_CMSG_CLOEXEC)
        for level, kind, content in data:
            if (level, kind) == (SOL_SOCKET, SCM_RIGHTS) and len(content) == count * _SIZE:
                return struct.unpack(f"{count}i", content)
        raise OSError("what a fork needs has not come")

    def send(self, problem: str = "") -> None:
        """Say of this process that it lives, or why it cannot."""
        self._socket.send(BORN + problem.encode("utf-8", "replace"))
