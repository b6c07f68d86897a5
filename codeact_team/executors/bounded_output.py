"""What the code of one call writes: passed on as it comes, and kept up to a limit."""

from __future__ import annotations

import codecs
from collections import deque

from codeact_team.executor_interface import Emit

MAX_OUTPUT_BYTES = 1024 * 1024
"""How much output of one call is kept, in bytes; more is cut in the middle. What is passed on is not cut."""


class BoundedOutput:
    """What the blocks of one call wrote. Keeps the first and the last half of ``limit`` bytes.

    Args:
        emit: Gets the text as it comes.
        limit: How many bytes to keep.
    """

    def __init__(self, emit: Emit | None = None, limit: int = MAX_OUTPUT_BYTES) -> None:
        self._half = self._room = limit // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._dropped = 0
        self._emit = emit
        self._decoder = None if emit is None else codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def omitted_bytes(self) -> int:
        """How many bytes were dropped from the middle."""
        return self._dropped + max(0, self._tail_size - self._half)

    async def write(self, data: bytes) -> None:
        """Take in ``data``, and pass it on; a character that is not complete yet goes with the next piece."""
        if len(data) <= self._room:
            self._head += data
            self._room -= len(data)
        else:
            self._head += data[: self._room]
            self._keep_end(data[self._room :])
            self._room = 0
        if self._decoder is not None:
            await self._pass_on(self._decoder.decode(data))

    async def remark(self, text: str) -> None:
        """Add a remark of ours, on a line of its own."""
        end = self.end(1)
        await self.write((f"\n{text}" if end and end != "\n" else text).encode())

    async def finish(self) -> None:
        """Pass on what was held back of a character that is never completed."""
        if self._decoder is not None:
            await self._pass_on(self._decoder.decode(b"", final=True))

    def text(self) -> str:
        """All that was kept, with a remark where something was cut."""
        if not self._tail:
            return self._head.decode(errors="replace")
        tail = b"".join(self._tail)[-self._half :]
        if not (omitted := self.omitted_bytes):
            return (self._head + tail).decode(errors="replace")
        cut = f"\n[... {omitted} bytes of output omitted ...]\n"
        return self._head.decode(errors="replace") + cut + tail.decode(errors="replace")

    def end(self, size: int = 4000) -> str:
        """The last ``size`` bytes."""
        tail = b"".join(self._tail)
        head = self._head[max(0, len(self._head) + len(tail) - size) :]
        return (head + tail)[-size:].decode(errors="replace")

    def _keep_end(self, data: bytes) -> None:
        self._tail.append(data)
        self._tail_size += len(data)
        while self._tail_size - len(self._tail[0]) >= self._half:
            oldest = self._tail.popleft()
            self._tail_size -= len(oldest)
            self._dropped += len(oldest)

    async def _pass_on(self, text: str) -> None:
        if text and self._emit is not None:
            await self._emit(text)
