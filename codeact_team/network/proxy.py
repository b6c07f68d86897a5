"""The proxy: takes the connections of sandboxes, and does with each what the gateway says.

It knows a sandbox by its socket, and by a token that its supervisor speaks and not code. All else that comes from inside is
hostile.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
import ssl
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from itertools import count

from codeact_team.core.child_process import PipeChannel
from codeact_team.core.streams import BUFFER, ByteStream, SocketStream, TlsStream, relay
from codeact_team.network.authority import Authority
from codeact_team.network.control import (
    BACKLOG,
    Answered,
    ControlMessage,
    Denied,
    EgressAsked,
    EgressEnded,
    EgressOpened,
    Noted,
    Proceed,
    ReadRequests,
    Refused,
)
from codeact_team.network.exchange import Exchanges, KeptRoom, Origin, Reply, dial
from codeact_team.network.hello import HelloRefusedError, read_hello
from codeact_team.network.http import HttpError, HttpRequest, RequestReader
from codeact_team.network.inside.first_line import MAX_LINE, PROXY, FirstLine
from codeact_team.network.names import (
    CONNECT,
    DEFAULT_PORTS,
    NameRefusedError,
    host_and_port,
    is_address,
    split_url,
)
from codeact_team.network.secrets import SecretRefusedError, Secrets

logger = logging.getLogger(__name__)

_GREETING_TIMEOUT = 20.0
"""Seconds for the forwarder's first line, and for what begins a connection by TLS."""
_MOST_CONNECTIONS = 2000
"""The most connections of one sandbox; more are closed."""
_MOST_KEPT_IN_ALL = 32 << 20
"""The most bytes of bodies of one sandbox that are kept at a time; others pass, and cannot be given again."""
_LINGER = 300.0
"""Seconds in which code has to read the last of what it gets, and to end the connection."""
_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_HANDSHAKE = b"\x16"
"""The first byte of what begins with TLS."""


class GatewayChannel:
    """The gateway, through a channel."""

    def __init__(self, channel: PipeChannel) -> None:
        self._channel = channel
        self._numbers = count(1)
        self._replies: dict[int, asyncio.Future[Reply]] = {}
        self._noted: dict[int, asyncio.Future[None]] = {}

    def send(self, message: ControlMessage) -> None:
        """Send what has no answer."""
        self._channel.send(message.to_message())

    async def ask(self, question: EgressAsked) -> Reply:
        """Ask whether something may be sent; the question gets its number here."""
        number = next(self._numbers)
        reply = self._replies[number] = asyncio.get_running_loop().create_future()
        try:
            self.send(replace(question, number=number))
            return await reply
        except asyncio.CancelledError:
            # it may have been allowed in this very moment
            self.send(EgressEnded(number, error="the connection was closed"))
            raise
        finally:
            del self._replies[number]

    async def end(self, ended: EgressEnded) -> None:
        """Tell an end, and wait until it is on record."""
        noted = self._noted[ended.number] = asyncio.get_running_loop().create_future()
        try:
            self.send(ended)
            await noted
        finally:
            del self._noted[ended.number]

    def take(self, message: ControlMessage) -> None:
        """Take what the gateway says about one question; nobody may wait for it any more."""
        match message:
            case Proceed() | ReadRequests() | Denied() | Answered():
                if (reply := self._replies.get(message.number)) is not None and not reply.done():
                    reply.set_result(message)
            case Noted():
                if (noted := self._noted.get(message.number)) is not None and not noted.done():
                    noted.set_result(None)
            case _:
                raise ValueError(f"the gateway has sent {message}")


class SandboxEnd:
    """The end of one sandbox at the proxy.

    Args:
        opened: What is known of the sandbox.
        gateway: Whom to ask.
    """

    def __init__(self, opened: EgressOpened, gateway: GatewayChannel) -> None:
        self.number: int = opened.sandbox
        self.gateway = gateway
        self.names: Mapping[str, str] = opened.names
        self.secrets: Secrets = Secrets(opened.credentials)
        self.room: KeptRoom = KeptRoom(_MOST_KEPT_IN_ALL)
        self._opened = opened
        self._token = opened.token
        self._connections: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, descriptor: int) -> None:
        """Take connections from a listening socket from now on."""
        listening = socket.socket(fileno=descriptor)
        self._server = await asyncio.start_unix_server(
            self._on_connection, sock=listening, limit=BUFFER, backlog=BACKLOG
        )

    async def aclose(self) -> None:
        """End all connections, and take no more."""
        if self._server is not None:
            self._server.close()
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    @cached_property
    def authority(self) -> Authority:
        """Who signs the certificates that its code trusts."""
        return Authority.of(self._opened.authority)

    @cached_property
    def trust(self) -> ssl.SSLContext:
        """How servers prove who they are."""
        context = ssl.create_default_context(cadata=self._opened.trusted)
        context.set_alpn_protocols(["http/1.1"])
        return context

    def _on_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._connections) >= _MOST_CONNECTIONS:
            writer.transport.abort()
            return
        connection = asyncio.ensure_future(self._serve(SocketStream(reader, writer)))
        self._connections.add(connection)
        connection.add_done_callback(self._connections.discard)

    async def _serve(self, stream: SocketStream) -> None:
        try:
            unit, address, port = await self._greeted(stream)
            connection = ProxiedConnection(self, unit, stream)
            if (address, port) == PROXY:
                await connection.serve_proxy()
            elif (host := self.names.get(address)) is not None:
                await connection.serve_host(host, port)
            await stream.finish(_LINGER)
        except (OSError, TimeoutError, HttpError) as error:
            logger.debug("a connection has ended: %s", error)
        except Exception:
            logger.exception("a connection could not be served")
        finally:
            stream.abort()

    async def _greeted(self, stream: SocketStream) -> tuple[str, str, int]:
        """The unit, the address and the port of the forwarder's first line. Raises a ``ConnectionError`` for any other."""
        data = b""
        async with asyncio.timeout(_GREETING_TIMEOUT):
            while b"\n" not in data and len(data) < MAX_LINE:
                if not (piece := await stream.read()):
                    break
                data += piece
        line, _, rest = data.partition(b"\n")
        try:
            said = FirstLine.unpack(line + b"\n")
        except ValueError:
            raise ConnectionError("whoever has connected is not the forwarder") from None
        if not hmac.compare_digest(said.token, self._token):
            raise ConnectionError("whoever has connected does not know the token")
        if rest:
            stream.unread(rest)
        return said.unit, said.address, said.port


class ProxiedConnection:
    """One connection of code.

    Args:
        sandbox: Its sandbox.
        unit: The session, fork or process in it whose connection it is.
        stream: The connection.
    """

    def __init__(self, sandbox: SandboxEnd, unit: str, stream: SocketStream) -> None:
        self._sandbox = sandbox
        self._unit = unit
        self._stream = stream

    async def ask(self, question: EgressAsked) -> Reply:
        """Ask the gateway."""
        return await self._sandbox.gateway.ask(question)

    async def end(self, ended: EgressEnded) -> None:
        """Tell the gateway the end of what was allowed, and wait until it is on record."""
        await self._sandbox.gateway.end(ended)

    def tell(self, ended: EgressEnded) -> None:
        """Tell the gateway the end of what was allowed."""
        self._sandbox.gateway.send(ended)

    async def serve_proxy(self) -> None:
        """Serve a program that knows that it speaks with a proxy: requests with whole URIs, or a ``CONNECT``."""
        await self._serve_requests(self._stream, None)

    async def serve_host(self, host: str, port: int, established: bytes = b"") -> None:
        """Serve a program that takes this connection for one to the host; first it gets ``established``."""
        if port == DEFAULT_PORTS["http"]:
            await self._stream.write(established)
            await self._serve_requests(self._stream, Origin("http", host, port))
            return
        reply = await self.ask(EgressAsked(0, self._sandbox.number, self._unit, CONNECT, "", host, port))
        match reply:
            case ReadRequests():
                await self._stream.write(established)
                stream = await self._decrypted(host)
                scheme = "http" if stream is self._stream else "https"
                await self._serve_requests(stream, Origin(scheme, host, port))
            case Proceed():
                await self._tunnel(reply, host, port, established)
            case Denied():
                raise HttpError(reply.status, reply.reason)
            case Answered():
                raise HttpError(500, "a connection was understood as a request")

    async def _serve_requests(self, stream: ByteStream, origin: Origin | None) -> None:
        """Serve the requests on a stream, to one origin, or with whole URIs to any."""
        one, reader = self._sandbox, RequestReader(stream)
        exchanges = Exchanges(reader, self, one.number, self._unit, one.trust, one.secrets, one.room)
        try:
            goes_on = True
            while goes_on and (request := await self._next(reader)) is not None:
                try:
                    if origin is None and request.method == CONNECT:
                        await self.serve_host(*host_and_port(request.target, None), _ESTABLISHED)
                        return
                    await self._carry_out(exchanges, request, origin)
                except (NameRefusedError, SecretRefusedError) as error:
                    one.gateway.send(Refused(one.number, self._unit, str(error)))
                    await reader.refuse(HttpError(403, str(error)))
                except HttpError as error:
                    await reader.refuse(error)
                goes_on = reader.goes_on
            await stream.write_eof()
        finally:
            exchanges.close()

    async def _next(self, reader: RequestReader) -> HttpRequest | None:
        try:
            return await reader.next()
        except HttpError as error:
            await reader.refuse(error)
            return None

    async def _carry_out(self, exchanges: Exchanges, request: HttpRequest, origin: Origin | None) -> None:
        if request.method == CONNECT:
            raise HttpError(405, "CONNECT is for the proxy, and not for a server")
        if origin is None:
            origin, target = _absolute(request.target)
            request = request._replace(target=target)
        await exchanges.carry_out(request, origin)

    async def _decrypted(self, host: str) -> ByteStream:
        """The connection without its TLS, if it begins with that, by a certificate of the sandbox's own authority."""
        async with asyncio.timeout(_GREETING_TIMEOUT):
            start = await self._stream.read()
            self._stream.unread(start)
            if start[:1] != _HANDSHAKE:
                return self._stream
            await require_name(self._stream, host, self._refuse)
            stream = TlsStream(self._stream, self._sandbox.authority.leaf_for(host), None)
            await stream.handshake()
        return stream

    def _refuse(self, reason: str) -> None:
        self._sandbox.gateway.send(Refused(self._sandbox.number, self._unit, reason))

    async def _tunnel(self, allowed: Proceed, host: str, port: int, established: bytes) -> None:
        """Pass a connection through. It is looked at only where it begins with TLS."""
        sent = received = 0
        error: str | None = "the connection was closed"

        def passed(more_sent: int, more_received: int) -> None:
            nonlocal sent, received
            sent, received = sent + more_sent, received + more_received

        try:
            upstream = await dial(allowed.addresses, port)
            try:
                await self._stream.write(established)
                stream: ByteStream = self._stream
                if port == DEFAULT_PORTS["https"]:
                    await require_name(stream, host, self._refuse)
                else:
                    stream = _NamingHost(stream, host, self._refuse)
                await relay(stream, upstream, passed)
                error = None
                await upstream.finish(_LINGER)
            finally:
                upstream.abort()
        except HttpError as failure:
            error = failure.text
            raise
        except OSError as failure:
            error = f"the connection has broken: {failure.strerror or failure}"
            raise
        finally:
            self.tell(EgressEnded(allowed.number, sent=sent, received=received, error=error))


async def require_name(stream: ByteStream, host: str, refuse: Callable[[str], None]) -> None:
    """Look at the hello with which a connection by TLS begins, and leave it in the stream.

    Raises:
        ConnectionError: If it is none, or is not for the host; ``refuse`` has got the reason.
        TimeoutError: If it does not come in time.
    """
    data = b""
    hello = None
    try:
        async with asyncio.timeout(_GREETING_TIMEOUT):
            while hello is None:
                if not (piece := await stream.read()):
                    raise ConnectionError("the connection has ended before it began")
                data += piece
                hello = read_hello(data)
        if hello.has_ech:
            raise HelloRefusedError("it hides the host's name (ECH)")
        if hello.server_name != (None if is_address(host) else host):
            raise HelloRefusedError(f"it names {hello.server_name or 'no host'}")
    except HelloRefusedError as error:
        refuse(f"a connection to {host} was not begun as one by TLS to that host: {error}")
        raise ConnectionError(str(error)) from error
    stream.unread(data)


class _NamingHost(ByteStream):
    """A stream of code of which nobody knows what it speaks: if that is TLS, it has to name the host."""

    def __init__(self, under: ByteStream, host: str, refuse: Callable[[str], None]) -> None:
        super().__init__()
        self._under = under
        self._host = host
        self._refuse = refuse
        self._has_begun = False

    async def _read(self) -> bytes:
        data = await self._under.read()
        if not self._has_begun:
            self._has_begun = True
            if data[:1] == _HANDSHAKE:
                self._under.unread(data)
                await require_name(self._under, self._host, self._refuse)
                data = await self._under.read()
        return data

    async def write(self, data: bytes) -> None:
        await self._under.write(data)

    async def write_eof(self) -> None:
        await self._under.write_eof()

    def close(self) -> None:
        self._under.close()

    def abort(self) -> None:
        self._under.abort()


def _absolute(target: str) -> tuple[Origin, str]:
    """The origin of a whole URI, and the rest. Raises a :class:`NameRefusedError`."""
    scheme, authority, target = split_url(target)
    if scheme != "http":
        raise NameRefusedError("a proxy takes requests for http://, and CONNECT for all else")
    return Origin("http", *host_and_port(authority, DEFAULT_PORTS["http"])), target
