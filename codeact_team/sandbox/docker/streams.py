"""The bytes of a container's programs, as an engine passes them on."""

from __future__ import annotations

import struct

_HEADER = struct.Struct(">BxxxL")
"""The stream, and the length of the payload that follows."""


class Demultiplexer:
    """Takes the engine's frames apart. Buffers only an incomplete header, whatever length that claims."""

    def __init__(self) -> None:
        self._header = b""
        self._payload_left = 0

    def feed(self, data: bytes) -> bytes:
        """The payload in ``data``, of all streams merged."""
        payload: list[bytes] = []
        view = memoryview(data)
        while view:
            if not self._payload_left:
                missing = _HEADER.size - len(self._header)
                self._header += view[:missing]
                view = view[missing:]
                if len(self._header) < _HEADER.size:
                    break
                _, self._payload_left = _HEADER.unpack(self._header)
                self._header = b""
                continue
            piece = view[: self._payload_left]
            self._payload_left -= len(piece)
            payload.append(bytes(piece))
            view = view[len(piece) :]
        return b"".join(payload)
