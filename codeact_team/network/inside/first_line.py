"""How the forwarder in a sandbox and the proxy on the host name a connection: the first line on the unix socket.

``TOKEN UNIT ADDRESS PORT``, in ASCII: whose sandbox it is, what in the sandbox has connected, and where to. Both ends import this.
"""

from __future__ import annotations

import re

# pyright: reportUntypedNamedTuple=false
# typing, which has NamedTuple, takes longer to load than everything else here
from collections import namedtuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

PROXY = ("127.1.0.1", 3128)
"""The address in a sandbox that is an HTTP proxy. All others stand for the name of a host."""
_PER_BLOCK = 250
MAX_LINE = 200
"""Bytes of the longest line, with its end."""
_LINE = re.compile(rb"([0-9a-f]{64}) (-|[sp]\d{1,9}) (127\.\d{1,3}\.\d{1,3}\.\d{1,3}) (\d{1,5})\n")


def address_of(number: int) -> str:
    """The address in a sandbox that stands for the name with this number, from 0. There is room for 60,000."""
    block, place = divmod(number, _PER_BLOCK)
    return f"127.1.{1 + block}.{1 + place}"


class FirstLine(namedtuple("FirstLine", "token unit address port")):
    """The first line of a connection.

    Attributes:
        token: 64 hexadecimal digits, the secret of the sandbox.
        unit: What has connected: ``s0`` for the main session, ``s3`` for its fork 3, ``p5`` for process 5 of the host's,
            ``-`` where that is not known for certain.
        address: Where it has connected to.
        port: The port of that.
    """

    __slots__ = ()
    token: str
    unit: str
    address: str
    port: int

    def pack(self) -> bytes:
        return f"{self.token} {self.unit} {self.address} {self.port}\n".encode()

    @classmethod
    def unpack(cls, line: bytes) -> Self:
        """Read a line, with its end. Raises a ``ValueError``."""
        if (found := _LINE.fullmatch(line)) is None:
            raise ValueError("that is no first line of a connection")
        token, unit, address, port = (part.decode() for part in found.groups())
        return cls(token, unit, address, int(port))
