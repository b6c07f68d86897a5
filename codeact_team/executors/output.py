"""Program output, bounded: as text while it comes, and its beginning and end at last."""

from __future__ import annotations

import codecs
from collections import deque

MAX_OUTPUT_BYTES = 1024 * 1024
"""How much output of one call is kept, in bytes; more is cut in the middle. Streaming is not cut."""


class Output:
    """What the blocks of one call wrote. Keeps the first and the last half of ``limit`` bytes.

    Args:
        limit: How many bytes to keep.
    """

    def __init__(self, limit: int = MAX_OUTPUT_BYTES) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._dropped = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def omitted_bytes(self) -> int:
        """How many bytes were dropped from the middle."""
        return self._dropped + max(0, self._tail_size - self._half)

    def add(self, data: bytes) -> str:
        """Take in ``data`` and return it as text; a character that is not complete yet comes with the next piece."""
        room = self._half - len(self._head)
        self._head += data[:room]
        if rest := data[room:] if room > 0 else data:
            self._tail.append(rest)
            self._tail_size += len(rest)
            while self._tail_size - len(self._tail[0]) >= self._half:
                oldest = self._tail.popleft()
                self._tail_size -= len(oldest)
                self._dropped += len(oldest)
        return self._decoder.decode(data)

    def add_text(self, text: str) -> str:
        """Take in a remark of our own."""
        return self.add(text.encode())

    def finish(self) -> str:
        """What was held back of a character that is never completed."""
        return self._decoder.decode(b"", final=True)

    def text(self) -> str:
        """All that was kept, with a remark where something was cut."""
        tail = b"".join(self._tail)[-self._half :]
        if not self.omitted_bytes:
            return (bytes(self._head) + tail).decode(errors="replace")
        cut = f"\n[... {self.omitted_bytes} bytes of output omitted ...]\n"
        return self._head.decode(errors="replace") + cut + tail.decode(errors="replace")

    def end(self, size: int = 4000) -> str:
        """The last ``size`` bytes."""
        tail = b"".join(self._tail)
        return (bytes(self._head[max(0, len(self._head) + len(tail) - size) :]) + tail)[-size:].decode(
            errors="replace"
        )
