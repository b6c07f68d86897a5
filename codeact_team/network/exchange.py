"""One request of code and its answer, both read and written anew."""

from __future__ import annotations

import asyncio
import hashlib
import re
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from codeact_team.core.streams import BUFFER, ByteStream, SocketStream, TlsStream
from codeact_team.network.control import (
    MOST_KEPT,
    Answered,
    Denied,
    EgressAsked,
    EgressEnded,
    Proceed,
    ReadRequests,
    from_text,
    to_text,
)
from codeact_team.network.http import (
    Headers,
    HttpError,
    HttpRequest,
    RequestReader,
    Response,
    ResponseReader,
    passed_on,
    values_of,
    without_fields,
)
from codeact_team.network.names import DEFAULT_PORTS, SAFE_METHODS, authority_of, host_and_port, path_of
from codeact_team.network.secrets import SecretRefusedError, Secrets

_DIAL_TIMEOUT = 20.0
"""Seconds in which one address of a server has to answer."""
_OVERRIDES = {
    b"x-http-method-override",
    b"x-http-method",
    b"x-method-override",
    b"x-original-url",
    b"x-rewrite-url",
}
"""Fields by which some servers take another method, or another path, than a rule has seen."""
Reply = Proceed | ReadRequests | Denied | Answered


class Asking(Protocol):
    """The gateway, as one connection of a sandbox sees it."""

    async def ask(self, question: EgressAsked) -> Reply:
        """Ask, under a new number."""
        ...

    async def end(self, ended: EgressEnded) -> None:
        """Tell the end of what was allowed, and wait until it is on record."""
        ...

    def tell(self, ended: EgressEnded) -> None:
        """Tell the end of what was allowed."""
        ...


class Origin(NamedTuple):
    """Where a request goes."""

    scheme: str
    host: str
    port: int


async def dial(addresses: Sequence[str], port: int) -> SocketStream:
    """Connect to the first of these numeric addresses that answers. Raises an :class:`HttpError` if none does."""
    reason = "it has no address"
    for address in addresses:
        try:
            async with asyncio.timeout(_DIAL_TIMEOUT):
                return SocketStream(*await asyncio.open_connection(address, port, limit=BUFFER))
        except TimeoutError:
            reason = f"no answer within {_DIAL_TIMEOUT:g} s"
        except OSError as error:
            reason = error.strerror or str(error)
    raise HttpError(502, f"the server cannot be reached: {reason}")


class KeptRoom:
    """What may be kept of the bodies of one sandbox at a time. Beyond it, bodies pass and are not kept.

    Args:
        size: Bytes.
    """

    def __init__(self, size: int) -> None:
        self._left = size

    def take(self, size: int) -> bool:
        """Take so many bytes, if they are there."""
        if size > self._left:
            return False
        self._left -= size
        return True

    def give_back(self, size: int) -> None:
        """Give back what was taken."""
        self._left += size


class _Kept:
    """A body as far as it is kept.

    Attributes:
        data: What is kept.
        is_whole: Whether that is all that has come.
    """

    def __init__(self, room: KeptRoom) -> None:
        self._room = room
        self.data = bytearray()
        self.is_whole = True

    def add(self, piece: bytes) -> bool:
        """Keep a piece, unless it is too much, or one before it was not kept."""
        fits = len(self.data) + len(piece) <= MOST_KEPT
        self.is_whole = self.is_whole and fits and self._room.take(len(piece))
        if self.is_whole:
            self.data += piece
        return self.is_whole

    def release(self) -> None:
        """Keep it no longer."""
        self._room.give_back(len(self.data))
        self.data.clear()


class _Upstream(NamedTuple):
    """A kept connection to a server."""

    origin: Origin
    socket: SocketStream
    stream: ByteStream
    reader: ResponseReader

    def takes(self, origin: Origin) -> bool:
        return self.origin == origin and self.reader.goes_on and not self.socket.has_ended


class Exchanges:
    """The requests of one connection, one after the other.

    Args:
        reader: Where they come from.
        gateway: Whom to ask.
        sandbox: The number of the sandbox.
        unit: The session, fork or process whose connection it is.
        trust: How servers prove who they are.
        secrets: The credentials of the sandbox.
        room: What may be kept of its bodies.
    """

    def __init__(
        self,
        reader: RequestReader,
        gateway: Asking,
        sandbox: int,
        unit: str,
        trust: ssl.SSLContext,
        secrets: Secrets,
        room: KeptRoom,
    ) -> None:
        self._reader = reader
        self._gateway = gateway
        self._sandbox = sandbox
        self._unit = unit
        self._trust = trust
        self._secrets = secrets
        self._room = room
        self._upstream: _Upstream | None = None

    def close(self) -> None:
        """Close the connection to the server."""
        if self._upstream is not None:
            self._upstream.stream.close()
            self._upstream = None

    async def carry_out(self, request: HttpRequest, origin: Origin) -> None:
        """Ask whether a request may be sent, send it, and answer it.

        Raises:
            HttpError: If it is refused, or its server cannot be reached.
            NameRefusedError: If its host or its path is not written as it should be.
            SecretRefusedError: If a placeholder stands where it must not.
            OSError: If the connection to the code breaks.
        """
        self._require_host(request, origin)
        path_of(request.target)
        request = request._replace(headers=_for_next_hop(request))
        is_tls = origin.scheme == "https"
        headers = self._secrets.put_in(
            origin.host, request.method, is_tls, passed_on(request.headers), request.target
        )
        body = _Body(self._reader, request, self._secrets, self._room)
        try:
            await body.read_start()
            reply = await self._gateway.ask(self._question(request, origin, body))
            match reply:
                case Answered():
                    await self._give_recorded(request, reply)
                case Proceed():
                    outgoing = HttpRequest(request.method, request.target, _with_host(headers, origin))
                    await self._send(reply, outgoing, origin, body)
                case Denied():
                    raise HttpError(reply.status, reply.reason)
                case ReadRequests():
                    raise HttpError(500, "the request was understood as a connection")
        finally:
            body.release()

    def _question(self, request: HttpRequest, origin: Origin, body: _Body) -> EgressAsked:
        return EgressAsked(
            number=0,
            sandbox=self._sandbox,
            unit=self._unit,
            method=request.method,
            scheme=origin.scheme,
            host=origin.host,
            port=origin.port,
            target=request.target,
            body=body.digest,
            body_size=body.size,
        )

    def _require_host(self, request: HttpRequest, origin: Origin) -> None:
        """Raise an :class:`HttpError` if the request names another host than the one that the connection is for."""
        values = values_of(request.headers, b"host")
        if b"websocket" in b",".join(values_of(request.headers, b"upgrade")).lower():
            raise HttpError(
                501,
                "a WebSocket is not passed on where requests are read: the rule names methods, paths, or a credential",
            )
        named = host_and_port(values[0].decode("latin-1"), DEFAULT_PORTS[origin.scheme]) if values else None
        if named != (origin.host, origin.port):
            raise HttpError(421, f"the field Host does not name {origin.host}, for which this connection is")

    async def _give_recorded(self, request: HttpRequest, answer: Answered) -> None:
        headers = without_fields(from_text(answer.headers), b"content-length")
        if request.method != "HEAD":
            headers.append((b"Content-Length", b"%d" % len(answer.content)))
        await self._reader.answer(Response(answer.status, headers))
        if answer.content and request.method != "HEAD":
            await self._reader.send_body(answer.content)
        await self._reader.end_body()

    async def _send(self, allowed: Proceed, request: HttpRequest, origin: Origin, body: _Body) -> None:
        ended = EgressEnded(allowed.number, error="the connection was closed")
        answer: _Answer | None = None

        async def note(whole: EgressEnded) -> None:
            nonlocal ended
            ended = whole
            await self._gateway.end(ended)

        try:
            response = await self._response(allowed, request, origin, body)
            answer = _Answer(self._reader, request.method, response, self._secrets, origin.host, self._room)
            assert self._upstream is not None, "it has answered"
            await answer.pass_on(
                self._upstream.reader,
                lambda: note(answer.ended(EgressEnded(allowed.number, sent=body.sent)) if answer else ended),
            )
        except HttpError as error:
            ended = replace(ended, error=error.text)
            raise
        except OSError as error:
            ended = replace(ended, error=f"the connection has broken: {error.strerror or error}")
            raise
        finally:
            if ended.error is not None:
                partial = ended if answer is None else replace(answer.ended(ended), error=ended.error)
                self._gateway.tell(replace(partial, sent=body.sent, content=b"", is_whole=False))
            if answer is not None:
                answer.release()
            if self._upstream is not None and not self._upstream.reader.goes_on:
                self.close()

    async def _response(
        self, allowed: Proceed, request: HttpRequest, origin: Origin, body: _Body
    ) -> Response:
        """Send a request, once more where a kept connection has ended meanwhile. Returns the head of its answer."""
        is_kept = self._upstream is not None and self._upstream.takes(origin)
        try:
            return await self._try(allowed, request, origin, body)
        except (OSError, HttpError):
            if not (is_kept and request.method in SAFE_METHODS and body.is_whole):
                raise
            self.close()
            return await self._try(allowed, request, origin, body)

    async def _try(self, allowed: Proceed, request: HttpRequest, origin: Origin, body: _Body) -> Response:
        if self._upstream is None or not self._upstream.takes(origin):
            self.close()
            self._upstream = await self._connect(allowed.addresses, origin)
        reader = self._upstream.reader
        await reader.ask(request._replace(headers=[*request.headers, *body.framing]))
        async for piece in body:
            await reader.send_body(piece)
        await reader.end_body()
        return await reader.response()

    async def _connect(self, addresses: Sequence[str], origin: Origin) -> _Upstream:
        socket = await dial(addresses, origin.port)
        stream: ByteStream = socket
        try:
            if origin.scheme == "https":
                stream = tls = TlsStream(socket, self._trust, origin.host)
                async with asyncio.timeout(_DIAL_TIMEOUT):
                    await tls.handshake()
        except ssl.SSLCertVerificationError as error:
            stream.close()
            raise HttpError(
                502, f"the server does not prove that it is {origin.host}: {error.verify_message}"
            ) from error
        except (OSError, TimeoutError) as error:
            stream.close()
            reason = str(error) or f"no answer within {_DIAL_TIMEOUT:g} s"
            raise HttpError(502, f"no TLS connection to the server is possible: {reason}") from error
        except BaseException:
            stream.close()
            raise
        return _Upstream(origin, socket, stream, ResponseReader(stream))


def _for_next_hop(request: HttpRequest) -> Headers:
    """The headers with one step less in ``Max-Forwards``, if that counts; raises an :class:`HttpError` if it is used up."""
    for name, _ in request.headers:
        # servers of some kinds take an underscore for a hyphen
        if name.lower().replace(b"_", b"-") in _OVERRIDES:
            raise HttpError(
                403,
                f"the field {name.decode()} is not passed on: a server may take another method or path by it",
            )
    steps = values_of(request.headers, b"max-forwards")
    if not steps or request.method not in ("TRACE", "OPTIONS"):
        return request.headers
    if len(steps) > 1 or re.fullmatch(rb"[0-9]{1,9}", steps[0]) is None:
        raise HttpError(400, "Max-Forwards is not one number")
    if not (left := int(steps[0])):
        raise HttpError(501, f"Max-Forwards ends here, and the proxy itself answers no {request.method}")
    return [*without_fields(request.headers, b"max-forwards"), (b"Max-Forwards", b"%d" % (left - 1))]


def _with_host(headers: Headers, origin: Origin) -> Headers:
    """The headers with the host that was checked, first of all."""
    authority = authority_of(origin.host, origin.port, scheme=origin.scheme)
    return [
        (b"Host", authority.encode()),
        *without_fields(headers, b"host", b"content-length", b"expect"),
    ]


class _Body:
    """The body of a request, of which the start is read before anybody is asked.

    Attributes:
        is_whole: Whether the start is all of it.
        sent: How many bytes were sent.
    """

    def __init__(self, reader: RequestReader, request: HttpRequest, secrets: Secrets, room: KeptRoom) -> None:
        self._reader = reader
        self._search = secrets.body_search()
        self._kept = _Kept(room)
        self._unkept = b""
        """The piece behind what is kept, which does not fit there any more."""
        lengths = values_of(request.headers, b"content-length")
        self._length = int(lengths[0]) if lengths else None
        self._exists = self._length is not None or bool(values_of(request.headers, b"transfer-encoding"))
        self.is_whole = False
        self.sent = 0

    async def read_start(self) -> None:
        """Read as much as is kept."""
        while (piece := await self._reader.read_body()) is not None:
            if not self._kept.add(piece):
                self._unkept = piece
                break
        self.is_whole = piece is None
        self._require_no_placeholder(self._start, is_last=self.is_whole)

    @property
    def _start(self) -> bytes:
        # made when it is needed: many bodies may wait
        return bytes(self._kept.data) + self._unkept

    @property
    def digest(self) -> str | None:
        """Its SHA-256 in hexadecimal digits; ``None`` if it is not whole."""
        return hashlib.sha256(self._kept.data).hexdigest() if self.is_whole else None

    @property
    def size(self) -> int:
        """Its bytes, if it is whole; else 0."""
        return len(self._kept.data) if self.is_whole else 0

    def release(self) -> None:
        """Keep nothing of it any more."""
        self._kept.release()

    @property
    def framing(self) -> Headers:
        """The headers that say how long it is."""
        if not self._exists:
            return ()
        length = self.size if self.is_whole else self._length
        return [(b"Transfer-Encoding", b"chunked") if length is None else (b"Content-Length", b"%d" % length)]

    async def __aiter__(self) -> AsyncGenerator[bytes, None]:
        start = self._start
        self.sent = len(start)
        if start:
            yield start
        if not self.is_whole:
            # it is not sent again
            start = self._unkept = b""
            self.release()
        while not self.is_whole:
            piece = await self._reader.read_body()
            self._require_no_placeholder(piece or b"", is_last=piece is None)
            if piece is None:
                break
            self.sent += len(piece)
            yield piece

    def _require_no_placeholder(self, piece: bytes, *, is_last: bool) -> None:
        if (name := self._search.find(piece, is_last=is_last)) is not None:
            raise SecretRefusedError(
                f"the placeholder of {name} stands in the body, where it is not replaced"
            )


class _Answer:
    """An answer on its way to the code: cleaned, and kept up to a limit."""

    def __init__(
        self,
        reader: RequestReader,
        method: str,
        response: Response,
        secrets: Secrets,
        host: str,
        room: KeptRoom,
    ) -> None:
        self._reader = reader
        self._response = response
        self._is_empty = method == "HEAD" or response.status in (204, 304)
        self._cleaning = None if self._is_empty else secrets.cleaning(host, response.headers)
        headers = secrets.clean_headers(host, passed_on(response.headers))
        if self._cleaning is not None:
            headers = without_fields(headers, b"content-length", b"content-encoding")
        self._headers = headers
        lengths = values_of(headers, b"content-length")
        self._left = int(lengths[0]) if lengths and not self._is_empty else None
        self._kept = _Kept(room)
        self._received = 0

    def ended(self, ended: EgressEnded) -> EgressEnded:
        """The end of the request, with what is known of the answer."""
        return replace(
            ended,
            status=self._response.status,
            headers=to_text(self._headers),
            received=self._received,
            content=bytes(self._kept.data) if self._kept.is_whole else b"",
            is_whole=self._kept.is_whole,
            error=None,
        )

    def release(self) -> None:
        """Keep nothing of it any more."""
        self._kept.release()

    async def pass_on(self, upstream: ResponseReader, note: Callable[[], Awaitable[None]]) -> None:
        """Send it to the code as it comes. The last of it follows once the end is noted."""
        await self._reader.answer(Response(self._response.status, self._headers))
        last = b""
        while (piece := await upstream.read_body()) is not None:
            for cleaned in [piece] if self._cleaning is None else self._cleaning.feed(piece):
                last = await self._give(cleaned)
        if self._cleaning is not None:
            last = await self._give(self._cleaning.end())
        await note()
        if last:
            await self._reader.send_body(last)
        await self._reader.end_body()

    async def _give(self, data: bytes) -> bytes:
        """Send a piece, unless it is the last by the length that the code knows; then it is returned."""
        if not data:
            return b""
        self._received += len(data)
        if not self._kept.add(data):
            self._kept.release()
        if self._left is not None:
            self._left -= len(data)
            if self._left <= 0:
                return data
        await self._reader.send_body(data)
        return b""
