"""HTTP/1.1 by the letter, one message at a time.

The head of a message is checked by its bytes before ``h11`` reads it, and each message is written anew by ``h11``: what
the two ends of a proxy could understand differently is refused, and nothing is passed on as it came.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from http.client import responses
from typing import Any, NamedTuple

import h11

from codeact_team.core.streams import ByteStream

LONGEST_HEAD = 64 * 1024
"""Bytes of a request line or a status line, with all header fields."""
MOST_FIELDS = 256
"""Header fields of a message."""
_MOST_PIECES = 256
"""Chunks of a body that are read at a time. Whoever sends millions of tiny ones shares the processor with the others."""
_HEAD_TIMEOUT = 30.0
"""Seconds in which a head that has begun has to be complete."""
_IDLE_TIMEOUT = 300.0
"""Seconds that a connection may stay open between two requests."""
_ANSWER_TIMEOUT = 1800.0
"""Seconds in which an answer has to begin: models may think for long."""

_FIELDS = rb"(?:[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*\r\n)*\r\n"
_REQUEST_HEAD = re.compile(rb"[A-Z][A-Z-]{0,31} [\x21-\x7e]+ HTTP/1\.[01]\r\n" + _FIELDS)
_RESPONSE_HEAD = re.compile(rb"HTTP/1\.[01] [1-5][0-9]{2}(?: [\t\x20-\x7e\x80-\xff]*)?\r\n" + _FIELDS)
_END_OF_HEAD = b"\r\n\r\n"
_HTTP_2 = b"PRI * HTTP/2.0\r\n\r\n"

Headers = Sequence[tuple[bytes, bytes]]
"""Names, as they are written, with values."""
_HOP_BY_HOP = {
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
}  # fmt: skip
_ONCE = {b"host", b"content-length", b"transfer-encoding", b"content-type", b"expect", b"content-encoding"}
"""Fields of which two would be read by some programs as the first, and by others as the last."""


class HttpError(Exception):
    """A message that is refused, or cannot be got.

    Attributes:
        status: The status of the answer that says so.
        text: Why, in words for whoever has sent the request.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class HttpRequest(NamedTuple):
    """The head of a request."""

    method: str
    target: str
    headers: Headers


class Response(NamedTuple):
    """The head of an answer."""

    status: int
    headers: Headers


def values_of(headers: Headers, name: bytes) -> list[bytes]:
    """The values of all fields of this name, in lower case letters."""
    return [value for field, value in headers if field.lower() == name]


def without_fields(headers: Headers, *names: bytes) -> list[tuple[bytes, bytes]]:
    """The fields without those of these names, in lower case letters."""
    return [(name, value) for name, value in headers if name.lower() not in names]


def passed_on(headers: Headers) -> list[tuple[bytes, bytes]]:
    """The fields without those that are for one connection only."""
    named = b",".join(values_of(headers, b"connection")).lower().split(b",")
    dropped = _HOP_BY_HOP | {name.strip() for name in named}
    return [(name, value) for name, value in headers if name.lower() not in dropped]


class _Messages:
    """What both ends of a connection have in common. A new parser for each message knows nothing of the ones before."""

    _role: Any
    _head_pattern: re.Pattern[bytes]
    _patience: float
    _fault: int
    """The status for the sender of a request where the other end of this stream sends what is none of HTTP."""

    def __init__(self, stream: ByteStream) -> None:
        self.stream = stream
        self._http = self._parser()

    def _parser(self) -> h11.Connection:
        return h11.Connection(self._role, max_incomplete_event_size=LONGEST_HEAD)

    async def _read_head(self) -> bytes | None:
        """The next head; ``None`` if the stream has ended before it. Leaves what follows in the stream."""
        async with asyncio.timeout(self._patience) as waiting:
            head = await self.stream.read()
            waiting.reschedule(asyncio.get_running_loop().time() + _HEAD_TIMEOUT)
            while head and _END_OF_HEAD not in head and len(head) <= LONGEST_HEAD:
                if not (piece := await self.stream.read()):
                    raise HttpError(self._fault, "the connection has ended within the head of a message")
                head += piece
        if not head:
            return None
        end = head.find(_END_OF_HEAD, 0, LONGEST_HEAD) + len(_END_OF_HEAD)
        if end < len(_END_OF_HEAD):
            raise HttpError(self._fault, "the head of the message is too long")
        if head.startswith(_HTTP_2):
            raise HttpError(505, "HTTP/2 is not understood here: use HTTP/1.1")
        if head.count(b"\r\n", 0, end) > MOST_FIELDS + 2:
            raise HttpError(self._fault, f"the message has more than {MOST_FIELDS} header fields")
        if not self._head_pattern.fullmatch(head, 0, end):
            raise HttpError(self._fault, "the head of the message is not strictly HTTP/1.1")
        if head[end:]:
            self.stream.unread(head[end:])
        return head[:end]

    async def read_body(self) -> bytes | None:
        """The next piece of the body; ``None`` once it is complete."""
        pieces: list[bytes] = []
        try:
            while self._http.their_state is h11.SEND_BODY and len(pieces) < _MOST_PIECES:
                event = self._http.next_event()
                if isinstance(event, h11.Data):
                    pieces.append(bytes(event.data))
                elif event is h11.NEED_DATA:
                    if pieces:
                        break
                    self._http.receive_data(await self.stream.read())
        except h11.RemoteProtocolError as error:
            raise HttpError(self._fault, f"the message is not strictly HTTP/1.1: {error}") from error
        if len(pieces) == _MOST_PIECES:
            await asyncio.sleep(0)
        if pieces:
            return b"".join(pieces)
        # of the next message, which has a parser of its own
        if trailing := self._http.trailing_data[0]:
            self.stream.unread(trailing)
        return None

    def _require_clear(self, headers: Headers) -> None:
        """Raise an :class:`HttpError` where fields are there twice, or say two things of the body's length."""
        names = [name.lower() for name, _ in headers]
        if doubled := next((name for name in _ONCE if names.count(name) > 1), None):
            raise HttpError(self._fault, f"there is more than one {doubled.decode()} field")
        if b"content-length" in names and b"transfer-encoding" in names:
            raise HttpError(self._fault, "Content-Length and Transfer-Encoding exclude each other")

    async def _send(self, event: h11.Event) -> None:
        if data := self._http.send(event):
            await self.stream.write(data)

    async def send_body(self, data: bytes) -> None:
        """Send a piece of the body."""
        await self._send(h11.Data(data))

    async def end_body(self) -> None:
        """End the message that is being sent."""
        await self._send(h11.EndOfMessage())


class RequestReader(_Messages):
    """Reads the requests that come by a stream, and sends the answers."""

    _role = h11.SERVER
    _head_pattern = _REQUEST_HEAD
    _patience = _IDLE_TIMEOUT
    _fault = 400

    async def next(self) -> HttpRequest | None:
        """The next request; ``None`` where there is none.

        Raises:
            HttpError: If it is none that can only be understood in one way.
            TimeoutError: If it does not come in time.
        """
        if (head := await self._read_head()) is None:
            return None
        self._http = self._parser()
        try:
            self._http.receive_data(head)
            event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            raise HttpError(
                error.error_status_hint, f"the request is not strictly HTTP/1.1: {error}"
            ) from error
        assert isinstance(event, h11.Request), "its head is complete"
        headers = event.headers.raw_items()
        self._require_clear(headers)
        return HttpRequest(event.method.decode(), event.target.decode(), headers)

    async def read_body(self) -> bytes | None:
        if self._http.they_are_waiting_for_100_continue:
            await self._send(h11.InformationalResponse(status_code=100, headers=[]))
        return await super().read_body()

    async def answer(self, response: Response) -> None:
        """Send the head of the answer."""
        reason = responses.get(response.status, "").encode()
        await self._send(
            h11.Response(status_code=response.status, reason=reason, headers=[*response.headers])
        )

    @property
    def has_answered(self) -> bool:
        """Whether the head of the answer was sent."""
        return self._http.our_state is not h11.SEND_RESPONSE and self._http.our_state is not h11.IDLE

    @property
    def goes_on(self) -> bool:
        """Whether another request may follow on this connection."""
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE

    async def refuse(self, error: HttpError) -> None:
        """Answer with the reason of a refusal, unless an answer has begun; the connection goes on if the request was read."""
        if self.has_answered:
            return
        if self._http.our_state is h11.IDLE:
            # there is no request that this parser knows
            self._http = self._parser()
            self._http.receive_data(b"GET / HTTP/1.0\r\n\r\n")
            self._http.next_event()
        text = f"{error.text}\n".encode()
        headers = [(b"Content-Type", b"text/plain; charset=utf-8"), (b"Content-Length", b"%d" % len(text))]
        if self._http.their_state is not h11.DONE:
            headers.append((b"Connection", b"close"))
        await self.answer(Response(error.status, headers))
        await self.send_body(text)
        await self.end_body()


class ResponseReader(_Messages):
    """Sends requests by a stream, and reads the answers."""

    _role = h11.CLIENT
    _head_pattern = _RESPONSE_HEAD
    _patience = _ANSWER_TIMEOUT
    _fault = 502

    async def ask(self, request: HttpRequest) -> None:
        """Send the head of a request."""
        self._http = self._parser()
        try:
            await self._send(
                h11.Request(method=request.method, target=request.target, headers=[*request.headers])
            )
        except h11.LocalProtocolError:
            # its text may hold the value of a field
            raise HttpError(400, "the request is not strictly HTTP/1.1") from None

    async def response(self) -> Response:
        """The head of the answer. Raises an :class:`HttpError` if it is none that can be passed on."""
        while True:
            if (head := await self._read_head()) is None:
                raise HttpError(502, "the server has closed the connection without an answer")
            self._http.receive_data(head)
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                raise HttpError(502, f"the server's answer is not strictly HTTP/1.1: {error}") from error
            if isinstance(event, h11.Response):
                break
            if not isinstance(event, h11.InformationalResponse) or event.status_code == 101:
                raise HttpError(502, "the server wants to change to another protocol, which is not passed on")
        headers = event.headers.raw_items()
        self._require_clear(headers)
        return Response(event.status_code, headers)

    @property
    def goes_on(self) -> bool:
        """Whether the server takes another request on this connection."""
        return self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
