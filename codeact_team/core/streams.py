"""Streams of bytes both ways: sockets, and TLS over any other. Unlike those of asyncio, each direction ends by itself."""

from __future__ import annotations

import asyncio
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress

CHUNK = 256 * 1024
"""The most bytes of one piece."""
BUFFER = 64 * 1024
"""The limit for asyncio's streams, which keep up to twice as much unread."""


class ByteStream(ABC):
    """A stream of bytes both ways. One task may read while another writes; all methods raise an ``OSError`` if it breaks."""

    def __init__(self) -> None:
        self._ahead = b""

    def unread(self, data: bytes) -> None:
        """Have the next :meth:`read` return these bytes first."""
        self._ahead = data + self._ahead

    async def read(self) -> bytes:
        """The next piece; empty once the other side has ended its direction."""
        if self._ahead:
            data, self._ahead = self._ahead, b""
            return data
        return await self._read()

    @abstractmethod
    async def _read(self) -> bytes: ...

    @abstractmethod
    async def write(self, data: bytes) -> None:
        """Send ``data``; waits while too much is unsent."""

    @abstractmethod
    async def write_eof(self) -> None:
        """End this side's direction."""

    @abstractmethod
    def close(self) -> None:
        """Close it in both directions. What was written is still sent."""

    @abstractmethod
    def abort(self) -> None:
        """Close it at once. What waits to be sent is lost."""


class SocketStream(ByteStream):
    """The stream of a socket, as asyncio opens and accepts them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__()
        self._reader, self._writer = reader, writer

    @property
    def has_ended(self) -> bool:
        """Whether the other side is known to have ended its direction, or the connection."""
        return self._reader.at_eof() or self._writer.is_closing()

    async def _read(self) -> bytes:
        return await self._reader.read(CHUNK)

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def write_eof(self) -> None:
        self._writer.write_eof()

    async def finish(self, seconds: float) -> None:
        """End it in order: what was written is still sent, and what still comes is dropped.

        Raises an ``OSError`` if that takes longer than ``seconds``, or the stream breaks.
        """
        async with asyncio.timeout(seconds):
            await self.write_eof()
            while await self._read():
                pass
            self._writer.close()
            await self._writer.wait_closed()

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        self._writer.transport.abort()


class TlsStream(ByteStream):
    """TLS over another stream, once :meth:`handshake` has returned.

    Args:
        under: The other stream. Both are closed together.
        context: Its settings.
        server_name: The name that the other side has to prove; ``None`` if this side is the server.
    """

    def __init__(self, under: ByteStream, context: ssl.SSLContext, server_name: str | None) -> None:
        super().__init__()
        self._under = under
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_name is None, server_hostname=server_name
        )

    async def handshake(self) -> None:
        """Agree with the other side. Raises an ``OSError`` if it does not prove who it is, or ends."""
        is_agreed = False
        while not is_agreed:
            try:
                self._tls.do_handshake()
                is_agreed = True
            except ssl.SSLWantReadError:
                pass
            finally:
                # also what tells the other side why it is refused
                await self._flush()
            if not is_agreed and not await self._receive():
                raise ConnectionError("the other side has closed the connection")

    async def _read(self) -> bytes:
        while True:
            try:
                data = self._tls.read(CHUNK)
                break
            except ssl.SSLWantReadError:
                # what a key's update is answered with
                await self._flush()
                if not await self._receive():
                    return b""
            except (ssl.SSLZeroReturnError, ssl.SSLEOFError):
                return b""
        await self._flush()
        return data

    async def _receive(self) -> bool:
        data = await self._under.read()
        self._incoming.write(data)
        return bool(data)

    async def write(self, data: bytes) -> None:
        self._tls.write(data)
        await self._flush()

    async def write_eof(self) -> None:
        # the other side may still write: this is the end of one direction
        with suppress(ssl.SSLWantReadError):
            self._tls.unwrap()
        await self._flush()

    async def _flush(self) -> None:
        if data := self._outgoing.read():
            await self._under.write(data)

    def close(self) -> None:
        self._under.close()

    def abort(self) -> None:
        self._under.abort()


async def relay(
    one: ByteStream, other: ByteStream, passed: Callable[[int, int], None] = lambda sent, received: None
) -> None:
    """Pass everything between two streams, and the end of each direction, until both have ended.

    Args:
        one: A stream.
        other: Another stream.
        passed: Called with the bytes of each piece: from ``one``, and to it; one of both is 0.

    Raises:
        OSError: If one breaks. The other is left as it is.
    """

    async def pump(source: ByteStream, target: ByteStream, *, is_sent: bool) -> None:
        while data := await source.read():
            passed(len(data) if is_sent else 0, 0 if is_sent else len(data))
            await target.write(data)
        # it may be gone in both directions
        with suppress(OSError):
            await target.write_eof()

    failures: Sequence[BaseException] = ()
    try:
        async with asyncio.TaskGroup() as directions:
            directions.create_task(pump(one, other, is_sent=True))
            directions.create_task(pump(other, one, is_sent=False))
    except* OSError as errors:
        # raised here, it would be one of a group
        failures = errors.exceptions
    if failures:
        raise failures[0]
