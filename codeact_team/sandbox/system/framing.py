"""Frames over byte streams, and descriptors over Unix sockets.

A frame is a kind (one byte), the length of its payload (four bytes, big-endian), and the payload.
"""

from __future__ import annotations

import struct

# without the module around it, which takes longer to load than the rest of a session's start
from _socket import CMSG_SPACE, SCM_RIGHTS, SOL_SOCKET

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _socket import socket
    from collections.abc import Iterator, Mapping, Sequence

_HEADER = struct.Struct(">BI")
_INT = struct.calcsize("i")
_SCM_CREDENTIALS = 2
_SIZE_OF_CREDENTIALS = struct.calcsize("3i")
_MAX_DESCRIPTORS = 64


class ProtocolError(Exception):
    """Bytes that are not one of the expected frames."""


def frame(kind: int, *payload: bytes) -> bytes:
    """Build a frame of ``kind``; its payload is given in pieces."""
    return b"".join((_HEADER.pack(kind, sum(map(len, payload))), *payload))


class FrameReader:
    """Takes frames out of a byte stream that may contain anything.

    It buffers at most one frame, and none that is not ``expected``.

    Args:
        expected: The kinds of frames, with the size of the largest payload of each in bytes.
    """

    def __init__(self, expected: Mapping[int, int]) -> None:
        self._expected = {int(kind): (kind, limit) for kind, limit in expected.items()}
        self._buffer = bytearray()

    @property
    def held(self) -> bytes:
        """The beginning of a frame that is not complete yet."""
        return bytes(self._buffer)

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        """The frames that are complete with ``data``. Must be read to the end.

        Raises:
            ProtocolError: If a frame is not one of those expected.
        """
        if len(data) >= _HEADER.size and not self._buffer:
            number, length = _HEADER.unpack_from(data)
            kind, limit = self._expected.get(number, (None, 0))
            if kind is not None and len(data) - _HEADER.size == length <= limit:
                # mostly one read is one frame
                return iter(((kind, data[_HEADER.size :]),))
        return self._feed(data)

    def _feed(self, data: bytes) -> Iterator[tuple[int, bytes]]:
        held = self._buffer
        if held:
            held += data
        stream = held or data
        size, start = len(stream), 0
        try:
            while size - start >= _HEADER.size:
                number, length = _HEADER.unpack_from(stream, start)
                kind, limit = self._expected.get(number, (None, 0))
                if kind is None:
                    raise ProtocolError(f"no frame of kind {number} is expected")
                if length > limit:
                    raise ProtocolError(f"a frame of kind {number} has {length} bytes, more than {limit}")
                end = start + _HEADER.size + length
                if size < end:
                    break
                payload = bytes(stream[start + _HEADER.size : end])
                start = end
                yield kind, payload
        finally:
            if held:
                del held[:start]
            elif start < size:
                held += memoryview(data)[start:]


def send_with_descriptors(socket: socket, data: bytes, descriptors: Sequence[int], flags: int = 0) -> int:
    """Send data together with descriptors. Returns how many bytes were sent. Raises an ``OSError`` on failure."""
    rights = struct.pack(f"{len(descriptors)}i", *descriptors)
    ancillary = [(SOL_SOCKET, SCM_RIGHTS, rights)] if descriptors else []
    return socket.sendmsg([data], ancillary, flags)


def receive_with_descriptors(socket: socket, size: int, flags: int = 0) -> tuple[bytes, list[int], int]:
    """Receive data and the descriptors that were sent with it.

    Returns:
        At most ``size`` bytes; the descriptors, which the caller closes; and the id of the process that has sent the data,
        0 unless the socket has ``SO_PASSCRED``.

    Raises:
        OSError: If receiving fails.
    """
    room = CMSG_SPACE(_MAX_DESCRIPTORS * _INT) + CMSG_SPACE(_SIZE_OF_CREDENTIALS)
    data, ancillary, _, _ = socket.recvmsg(size, room, flags)
    descriptors: list[int] = []
    sender = 0
    for level, kind, content in ancillary:
        if (level, kind) == (SOL_SOCKET, SCM_RIGHTS):
            descriptors += struct.unpack(f"{len(content) // _INT}i", content[: len(content) // _INT * _INT])
        elif (level, kind) == (SOL_SOCKET, _SCM_CREDENTIALS):
            (sender,) = struct.unpack_from("i", content)
    return data, descriptors, sender
