"""Transports of MCP servers, in which nothing that a server sends takes more memory than it may.

MCP's own read a message to its end, however long it is, and make an object of each of its parts. Here the bytes of a message,
its values and its pieces are counted before it is parsed; a server that sends more is disconnected.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

import anyio
import httpx
from anyio.abc import ByteReceiveStream, Process
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from autogen_ext.tools.mcp import McpServerParams, SseServerParams, StdioServerParams
from mcp import ClientSession, types
from mcp.client.sse import sse_client
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamablehttp_client  # pyright: ignore[reportDeprecated]  # its successor came later
from mcp.os.posix.utilities import terminate_posix_process_tree
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

if TYPE_CHECKING:
    from mcp.client.session import SamplingFnT

MAX_MESSAGE = 24 << 20
"""Bytes of a message: of what code may get, base64 makes four thirds."""
MAX_VALUES = 500_000
"""Values in a message: lists, mappings, and what they hold."""
_MAX_PIECES = 2_000
"""Pieces of an answer, or of what a server asks the model, each of which becomes an object."""
_MAX_TOOLS_OF_A_PAGE = 5_000

_EXIT_SECONDS = 2.0
_TEXTS = re.compile(rb'"(?:[^"\\]|\\.)*"')
_BLANK = (b"\n", b"\r\n", b"\r")
_LISTS = {"tools": _MAX_TOOLS_OF_A_PAGE, "content": _MAX_PIECES, "messages": _MAX_PIECES}

Fail = Callable[[str], None]
"""Ends the connection, for the reason that it is given."""


class _TooLarge(ValueError):
    """A server has sent more than it may; the text continues "the server"."""


def _require_bounded(message: bytes | bytearray) -> None:
    """Raise :class:`_TooLarge` if a message has too many bytes or values."""
    if len(message) > MAX_MESSAGE:
        raise _TooLarge(f"has sent a message of more than {MAX_MESSAGE >> 20} MiB")
    if _separators(message) > MAX_VALUES and _separators(_TEXTS.sub(b"", message)) > MAX_VALUES:
        raise _TooLarge(f"has sent a message of more than {MAX_VALUES:,} values")


def _separators(message: bytes | bytearray) -> int:
    return sum(map(message.count, (b",", b"[", b"{")))


def _require_few(message: SessionMessage | Exception) -> None:
    """Raise :class:`_TooLarge` if a list has too many parts that will become objects."""
    if isinstance(message, Exception):
        return
    root: Any = message.message.root
    content: object = getattr(root, "result", None) or getattr(root, "params", None)
    for name, most in _LISTS.items():
        listed = cast("dict[str, object]", content).get(name) if isinstance(content, dict) else None
        if isinstance(listed, list) and len(cast("list[object]", listed)) > most:
            raise _TooLarge(f"has sent {name!r} of more than {most:,} parts")


@asynccontextmanager
async def open_session(
    params: McpServerParams, sampling: SamplingFnT | None, fail: Fail
) -> AsyncGenerator[ClientSession, None]:
    """Connect to a server, which is started if it is a program.

    Args:
        params: The server.
        sampling: Answers when the server asks the model.
        fail: Called if the server sends more than it may. The session gets nothing more then.
    """
    async with _streams(params, fail) as (incoming, outgoing), anyio.create_task_group() as tasks:
        send, receive = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        tasks.start_soon(_pass_on, incoming, send, fail)
        seconds = (
            params.read_timeout_seconds if isinstance(params, StdioServerParams) else params.sse_read_timeout
        )
        async with ClientSession(
            receive, outgoing, read_timeout_seconds=timedelta(seconds=seconds), sampling_callback=sampling
        ) as session:
            yield session
        tasks.cancel_scope.cancel()


async def _pass_on(
    incoming: MemoryObjectReceiveStream[SessionMessage | Exception],
    outgoing: MemoryObjectSendStream[SessionMessage | Exception],
    fail: Fail,
) -> None:
    async with incoming, outgoing:
        # the session may have ended
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async for message in incoming:
                try:
                    _require_few(message)
                except _TooLarge as error:
                    fail(str(error))
                    return
                await outgoing.send(message)


_Streams = tuple[
    MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]
]


@asynccontextmanager
async def _streams(params: McpServerParams, fail: Fail) -> AsyncGenerator[_Streams, None]:
    if isinstance(params, StdioServerParams):
        async with _program(params, fail) as streams:
            yield streams
        return
    settings: dict[str, Any] = params.model_dump(exclude={"type"})
    settings["httpx_client_factory"] = _client_factory(fail)
    if isinstance(params, SseServerParams):
        async with sse_client(**settings) as streams:
            yield streams
        return
    settings |= {name: timedelta(seconds=settings[name]) for name in ("timeout", "sse_read_timeout")}
    async with streamablehttp_client(**settings) as (incoming, outgoing, _):  # pyright: ignore[reportDeprecated]
        yield incoming, outgoing


@asynccontextmanager
async def _program(params: StdioServerParams, fail: Fail) -> AsyncGenerator[_Streams, None]:
    """A program that speaks by its standard streams, a message in a line. It ends with its own group of processes."""
    process = await anyio.open_process(
        [params.command, *params.args],
        env={**get_default_environment(), **(params.env or {})},
        stderr=None,
        cwd=params.cwd,
        start_new_session=True,
    )
    to_session, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, from_session = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        assert process.stdout is not None, "it is a pipe"
        async with to_session:
            try:
                async for line in _lines(process.stdout):
                    # what a program prints besides is no message
                    with suppress(ValidationError):
                        await to_session.send(SessionMessage(types.JSONRPCMessage.model_validate_json(line)))
            except _TooLarge as error:
                fail(str(error))
            except (anyio.ClosedResourceError, anyio.BrokenResourceError):
                # nobody reads any more
                return

    async def write() -> None:
        assert process.stdin is not None, "it is a pipe"
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            async for message in from_session:
                text = message.message.model_dump_json(by_alias=True, exclude_none=True)
                await process.stdin.send(text.encode(params.encoding, params.encoding_error_handler) + b"\n")

    async with process, anyio.create_task_group() as tasks, incoming, outgoing, from_session:
        tasks.start_soon(read)
        tasks.start_soon(write)
        try:
            yield incoming, outgoing
        finally:
            with anyio.CancelScope(shield=True):
                await _end(process)
            tasks.cancel_scope.cancel()


async def _end(process: Process) -> None:
    """End a program as the protocol wants it: its input is closed, then it gets SIGTERM, then SIGKILL."""
    assert process.stdin is not None, "it is a pipe"
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
        await process.stdin.aclose()
    with anyio.move_on_after(_EXIT_SECONDS):
        await process.wait()
        return
    await terminate_posix_process_tree(process)


async def _lines(stream: ByteReceiveStream | AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """The lines of a stream, in bounded memory. Raises :class:`_TooLarge`."""
    buffer, searched = bytearray(), 0
    async for piece in stream:
        buffer += piece
        for line in _taken(buffer, searched):
            _require_bounded(line)
            yield line
        searched = len(buffer)
        if searched > MAX_MESSAGE:
            _require_bounded(buffer)


def _taken(buffer: bytearray, searched: int) -> Iterator[bytes]:
    """Take the whole lines out of a buffer, whose first ``searched`` bytes have no end of a line."""
    start = 0
    while (end := buffer.find(b"\n", max(start, searched))) >= 0:
        yield bytes(buffer[start : end + 1])
        start = end + 1
    del buffer[:start]


def _client_factory(fail: Fail) -> Callable[..., httpx.AsyncClient]:
    """Makes clients that read no more of a message than it may have."""

    def make(
        headers: dict[str, str] | None = None,
        timeout: httpx.Timeout | None = None,
        auth: httpx.Auth | None = None,
    ) -> httpx.AsyncClient:
        client = create_mcp_http_client(headers, timeout, auth)
        # what is compressed has a size that nobody knows before
        client.headers["accept-encoding"] = "identity"
        client.event_hooks["response"].append(bound)
        return client

    async def bound(response: httpx.Response) -> None:
        if response.headers.get("content-encoding", "identity") != "identity":
            fail("has sent a compressed answer that was not requested")
            response.headers.pop("content-encoding")
        response.stream = _BoundedStream(response, fail)

    return make


class _BoundedStream(httpx.AsyncByteStream):
    """The body of a response: events in whole lines, anything else as one piece."""

    def __init__(self, response: httpx.Response, fail: Fail) -> None:
        self._stream = cast("httpx.AsyncByteStream", response.stream)
        self._is_events = response.headers.get("content-type", "").startswith("text/event-stream")
        self._fail = fail

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for piece in self._events() if self._is_events else self._whole():
                yield piece
        except _TooLarge as error:
            self._fail(str(error))
            raise httpx.ReadError(str(error)) from error

    async def _events(self) -> AsyncGenerator[bytes, None]:
        size = 0
        async for line in _lines(aiter(self._stream)):
            size = 0 if line in _BLANK else size + len(line)
            if size > MAX_MESSAGE:
                raise _TooLarge(f"has sent an event of more than {MAX_MESSAGE >> 20} MiB")
            yield line

    async def _whole(self) -> AsyncGenerator[bytes, None]:
        body = bytearray()
        async for piece in self._stream:
            body += piece
            if len(body) > MAX_MESSAGE:
                break
        _require_bounded(body)
        yield bytes(body)

    async def aclose(self) -> None:
        await self._stream.aclose()
