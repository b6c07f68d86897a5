"""Ways out of a sandbox without the sandbox: servers with names, and what stands where code would."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from codeact_team.network.authority import Authority
from codeact_team.network.gateway import close_way, open_way
from codeact_team.network.rules import Credential, EgressRule, EgressRules
from codeact_team.network.secrets import with_values
from codeact_team.network.way import EgressPolicy, Way

LOOPBACK = ["127.0.0.1/32"]
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def name_loopback(
    monkeypatch: pytest.MonkeyPatch, addresses: Mapping[str, Sequence[str]] | None = None
) -> list[str]:
    """Have all names below ``.test`` lead to this machine, or to ``addresses``. Returns the list of names that are looked up."""
    real, asked = socket.getaddrinfo, list[str]()
    known = addresses or {}

    def look_up(host: Any, port: Any, *arguments: Any, **named: Any) -> Any:
        if isinstance(host, str) and host.endswith(".test"):
            asked.append(host)
            return [
                found
                for address in known.get(host, ["127.0.0.1"])
                for found in real(address, port, *arguments, **named)
            ]
        return real(host, port, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return asked


class Upstream:
    """A server. It keeps what it gets, and answers each request by ``answer``.

    Attributes:
        port: Its port.
        heads: The heads of requests that it has got, each with its body.
    """

    def __init__(self, answer: bytes | Callable[[bytes], bytes] | None = None) -> None:
        self.heads: list[bytes] = []
        self.connections = 0
        self._answer = answer
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await self._body(head, reader)
                self.heads.append(head + body)
                answer = self._answer(head + body) if callable(self._answer) else self._answer
                if answer is None:
                    text = b"answer to " + head.split(b" ")[1]
                    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text)
                writer.write(answer)
                await writer.drain()
                if b"connection: close" in answer.lower():
                    break
        writer.close()

    async def _body(self, head: bytes, reader: asyncio.StreamReader) -> bytes:
        lines = [line.partition(b":") for line in head.lower().split(b"\r\n")]
        fields = {name: value.strip() for name, _, value in lines}
        if b"content-length" in fields:
            return await reader.readexactly(int(fields[b"content-length"]))
        body = b""
        if fields.get(b"transfer-encoding") == b"chunked":
            while size := int(await reader.readline(), 16):
                body += (await reader.readexactly(size + 2))[:-2]
            await reader.readline()
        return body


@asynccontextmanager
async def serving(serve: Serve | Upstream, context: ssl.SSLContext | None = None) -> AsyncGenerator[int]:
    """A server on loopback; the value is its port."""
    serve_one = serve.serve if isinstance(serve, Upstream) else serve

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError):
                await serve_one(reader, writer)
            writer.close()
        except BaseException:
            writer.transport.abort()
            raise

    server = await asyncio.start_server(handler, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    if isinstance(serve, Upstream):
        serve.port = port
    try:
        yield port
    finally:
        server.close()


class Company:
    """An authority that servers have certificates of."""

    def __init__(self, directory: Path) -> None:
        self._authority = Authority.create()
        self.file = directory / "company.pem"
        self.file.write_text(self._authority.certificate_pem)

    def server_of(self, host: str) -> ssl.SSLContext:
        """The settings of a server that proves to be ``host``."""
        return self._authority.leaf_for(host)


@asynccontextmanager
async def way_out(
    *rules: EgressRule,
    extra_ca: Sequence[Path] = (),
    credentials: Sequence[Credential] = (),
    values: Mapping[str, str] | None = None,
) -> AsyncGenerator[Way]:
    """A way out with these rules, and credentials with their values."""
    policy = EgressPolicy(EgressRules(rules, credentials))
    way = await open_way(policy, with_values(credentials, values or {}), extra_ca=extra_ca)
    try:
        yield way
    finally:
        await close_way(way)


def allowed(host: str, *ports: int, **fields: Any) -> EgressRule:
    """A rule that allows a host that is on this machine."""
    return EgressRule(host=host, ports=[*ports], networks=LOOPBACK, decision="allow", **fields)


class Client:
    """What code would be: it speaks to the proxy through what stands for the forwarder.

    Args:
        reader: What it reads.
        writer: Where it writes.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, data: str | bytes) -> None:
        """Send bytes."""
        self.writer.write(data.encode() if isinstance(data, str) else data)
        await self.writer.drain()

    async def response(self, *, has_body: bool = True) -> tuple[int, dict[str, str], bytes]:
        """The next answer: its status, headers in lower case letters, and its body."""
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        status, *lines = head.split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = b""
        if has_body and "content-length" in fields:
            body = await self.reader.readexactly(int(fields["content-length"]))
        elif has_body and fields.get("transfer-encoding") == "chunked":
            while size := int(await self.reader.readline(), 16):
                body += (await self.reader.readexactly(size + 2))[:-2]
            await self.reader.readline()
        elif has_body and not status.startswith("HTTP/1.1 200 Connection"):
            body = await self.reader.read()
        return int(status.split()[1]), fields, body

    async def ask(self, data: str | bytes, *, has_body: bool = True) -> tuple[int, str]:
        """Send a request. Returns the status and the body of its answer."""
        await self.send(data)
        status, _, body = await self.response(has_body=has_body)
        return status, body.decode()

    async def connect(self, host: str, port: int) -> int:
        """Ask for a connection. Returns the status."""
        return (await self.ask(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n"))[0]

    async def use_tls(self, context: ssl.SSLContext, name: str) -> None:
        """Go on by TLS."""
        await self.writer.start_tls(context, server_hostname=name)

    async def is_closed(self) -> bool:
        """Whether the other side has closed the connection; waits for it."""
        try:
            return not await self.reader.read(1)
        except ConnectionError:
            return True


@asynccontextmanager
async def client_of(
    way: Way, address: str = "127.1.0.1", port: int = 3128, *, unit: str = "s0", token: str | None = None
) -> AsyncGenerator[Client]:
    """A connection as the forwarder would pass it on."""
    reader, writer = await asyncio.open_unix_connection(str(way.socket))
    try:
        client = Client(reader, writer)
        await client.send(f"{token or way.opened.token} {unit} {address} {port}\n")
        yield client
    finally:
        writer.transport.abort()


def trusting(way: Way) -> ssl.SSLContext:
    """What code in the sandbox trusts."""
    return ssl.create_default_context(
        cadata=way.opened.authority.partition("-----BEGIN CERT")[1]
        + way.opened.authority.partition("-----BEGIN CERT")[2]
    )


def get(url: str, host: str, *, method: str = "GET", fields: str = "", body: str = "") -> str:
    """Write a request."""
    length = f"Content-Length: {len(body)}\r\n" if body else ""
    return f"{method} {url} HTTP/1.1\r\nHost: {host}\r\n{fields}{length}\r\n{body}"


def proxies(host: int | None = None) -> set[int]:
    """The processes of proxies that this process has started, or a host."""
    found = set[int]()
    for file in Path(f"/proc/{host or os.getpid()}/task").glob("*/children"):
        # its thread, or a process, may end meanwhile
        with suppress(OSError):
            for pid in file.read_text().split():
                if b"codeact_team.network.process" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.add(int(pid))
    return found
