"""The first message of a TLS connection: which host it is for, and which protocols the client speaks."""

from __future__ import annotations

from typing import NamedTuple

from codeact_team.network.names import NameRefusedError, host_of, is_address

_LONGEST = 1 << 16
"""Bytes of a whole hello, with the heads of its records. Key shares that withstand quantum computers make it long."""
_LONGEST_RECORD = 1 << 14
_MOST_RECORDS = 1024
"""All are read again with each byte that comes."""

_HANDSHAKE = b"\x16\3"
"""The type of a record, and the first half of its version."""
_CLIENT_HELLO = 1
_SERVER_NAME, _PROTOCOLS = 0, 16
_TOO_LONG = f"the ClientHello has more than {_LONGEST:,} bytes"
_ENCRYPTED_HELLO = frozenset({0xFE0D, 0xFFCE})
"""Encrypted ClientHello, and the drafts of it that encrypted the name alone."""


class HelloRefusedError(ValueError):
    """The bytes that a client has sent are no ClientHello, or one of which it is not certain for whom it is."""


class ClientHello(NamedTuple):
    """What a client says before anything is encrypted.

    Attributes:
        server_name: The host that it wants, in lower case; ``None`` if it does not say.
        protocols: Those that it would speak inside (ALPN), such as ``h2``, the best first; empty if it does not say.
        has_ech: Whether another hello, perhaps for another host, is encrypted in it.
    """

    server_name: str | None
    protocols: tuple[str, ...]
    has_ech: bool


class _Fields:
    """Reads the fields of a message from left to right."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._place = 0

    @property
    def is_empty(self) -> bool:
        return self._place == len(self._data)

    def take(self, size: int) -> bytes:
        end = self._place + size
        if end > len(self._data):
            raise HelloRefusedError("a field of the ClientHello is longer than what holds it")
        taken = self._data[self._place : end]
        self._place = end
        return taken

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size), "big")

    def vector(self, size_of_length: int, shortest: int = 0) -> _Fields:
        """Take a length and as many bytes as it says."""
        data = self.take(self.number(size_of_length))
        if len(data) < shortest:
            raise HelloRefusedError("a field of the ClientHello is empty or too short")
        return _Fields(data)

    def rest(self) -> bytes:
        return self.take(len(self._data) - self._place)

    def end(self, what: str) -> None:
        if not self.is_empty:
            raise HelloRefusedError(f"more bytes follow {what}")


def read_hello(data: bytes) -> ClientHello | None:
    """Read the ClientHello at the start of a connection, in however many records it comes.

    Args:
        data: All that has come so far. Records that follow the hello are not looked at.

    Returns:
        The hello; ``None`` while bytes of it are missing.

    Raises:
        HelloRefusedError: This is not TLS, is not well-formed, has more than 64 KiB, or names a host in a way that
            others might read differently.
    """
    message = _message(data)
    return None if message is None else _hello(_Fields(message))


def _message(data: bytes) -> bytes | None:
    """Put together the first message of the handshake."""
    message = bytearray()
    place = 0
    for _ in range(_MOST_RECORDS):
        head = data[place : place + 5]
        _check_head(head)
        if len(head) < 5:
            break
        begin, place = place + 5, place + 5 + int.from_bytes(head[3:], "big")
        message += data[begin:place]
        if len(message) >= 4:
            length = 4 + _length(message)
            if len(message) > length:
                raise HelloRefusedError("more bytes follow the ClientHello in its last record")
            if len(message) == length and place <= len(data):
                return bytes(message)
        if place > len(data):
            break
    else:
        raise HelloRefusedError(f"the ClientHello comes in more than {_MOST_RECORDS:,} records")
    if len(data) >= _LONGEST:
        raise HelloRefusedError(_TOO_LONG)
    return None


def _check_head(head: bytes) -> None:
    """Check what there is of the head of a record."""
    if not (_HANDSHAKE.startswith(head[:2]) and head[2:3] <= b"\4"):
        raise HelloRefusedError("the connection does not begin with TLS")
    if len(head) == 5 and not 0 < int.from_bytes(head[3:], "big") <= _LONGEST_RECORD:
        raise HelloRefusedError("a record of the ClientHello is empty, or longer than TLS allows")


def _length(message: bytes | bytearray) -> int:
    """Read how long the rest of a message is."""
    if message[0] != _CLIENT_HELLO:
        raise HelloRefusedError("the connection does not begin with a ClientHello")
    length = int.from_bytes(message[1:4], "big")
    if length > _LONGEST:
        raise HelloRefusedError(_TOO_LONG)
    if not length:
        raise HelloRefusedError("the ClientHello is empty")
    return length


def _hello(message: _Fields) -> ClientHello:
    message.take(4)
    if not 0x0301 <= message.number(2) <= 0x0303:
        raise HelloRefusedError("the ClientHello is of no known version of TLS")
    message.take(32)  # random bytes
    if len(message.vector(1).rest()) > 32:
        raise HelloRefusedError("the id of the session is longer than TLS allows")
    if len(message.vector(2, shortest=2).rest()) % 2:
        raise HelloRefusedError("the list of ciphers ends in the middle of one")
    message.vector(1, shortest=1)  # ways to compress
    if message.is_empty:
        # as before TLS 1.0 had extensions
        return ClientHello(None, (), False)
    fields = message.vector(2)
    message.end("the extensions of the ClientHello")
    extensions: dict[int, _Fields] = {}
    while not fields.is_empty:
        if (kind := fields.number(2)) in extensions:
            raise HelloRefusedError(f"the ClientHello has the extension {kind} twice")
        extensions[kind] = fields.vector(2)
    name, protocols = extensions.get(_SERVER_NAME), extensions.get(_PROTOCOLS)
    return ClientHello(
        None if name is None else _server_name(name),
        () if protocols is None else _protocols(protocols),
        not _ENCRYPTED_HELLO.isdisjoint(extensions),
    )


def _server_name(extension: _Fields) -> str:
    names = extension.vector(2, shortest=1)
    extension.end("the list of server names")
    if names.number(1) != 0:
        raise HelloRefusedError("the ClientHello has a server name that is no host's")
    name = names.vector(2, shortest=1).rest()
    if not names.is_empty:
        raise HelloRefusedError("the ClientHello has more than one server name")
    try:
        host = host_of(name.decode("ascii"))
    except UnicodeDecodeError:
        raise HelloRefusedError("the server name in the ClientHello is not ASCII") from None
    except NameRefusedError as refused:
        raise HelloRefusedError(f"the server name in the ClientHello is none: {refused}") from None
    if is_address(host):
        raise HelloRefusedError("the server name in the ClientHello is an address")
    return host


def _protocols(extension: _Fields) -> tuple[str, ...]:
    names = extension.vector(2, shortest=2)
    extension.end("the list of protocols")
    found: list[str] = []
    while not names.is_empty:
        found.append(names.vector(1, shortest=1).rest().decode("latin-1"))
    return tuple(found)
