"""The bytes of a container's programs, as an engine passes them on."""

from __future__ import annotations

import re
import struct

_HEADER = struct.Struct(">BxxxL")
"""The stream, and the length of the payload that follows."""
_NUMBER = re.compile(rb"-?[0-9]+")


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


class MarkedStream:
    """Separates a program's output from the line that ends it: a mark that the program does not know, and numbers.

    A program that finds out its mark can lie only about its own end, because every program has another mark.
    """

    _LONGEST_LINE = 64

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self._is_marked = False
        self._held = b""
        """What may be the beginning of the mark; after the mark, the beginning of the line."""
        self.numbers: tuple[int, ...] | None = None
        """The numbers after the mark, once the line is complete; ``None`` before."""

    @property
    def ended(self) -> bool:
        """Whether the line that ends the output is complete."""
        return self.numbers is not None

    def feed(self, data: bytes) -> bytes:
        """The next part of the output that cannot belong to the mark."""
        data, output = self._held + data, b""
        if not self._is_marked:
            output, mark, data = data.partition(self._mark)
            if not mark:
                end = len(output) - self._overlap(output)
                self._held = output[end:]
                return output[:end]
            self._is_marked = True
        self._held, newline, _ = data[: self._LONGEST_LINE].partition(b"\n")
        if self.numbers is None and (newline or len(self._held) == self._LONGEST_LINE):
            fields = self._held.split()
            self.numbers = tuple(map(int, fields)) if all(map(_NUMBER.fullmatch, fields)) else ()
        return output

    def finish(self) -> bytes:
        """The output that was held back, when no mark will come any more."""
        held, self._held = self._held, b""
        return b"" if self._is_marked else held

    def _overlap(self, data: bytes) -> int:
        """How many bytes at the end of ``data`` could be the beginning of the mark."""
        lengths = range(min(len(self._mark) - 1, len(data)), 0, -1)
        return next((length for length in lengths if data.endswith(self._mark[:length])), 0)
