"""What hostile code, neighbours and servers try at the proxy: none gets out, and none stalls the others."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import ssl
import subprocess
from collections.abc import Generator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from network.test_hello import extension, in_records, message, names
from support.egress import (
    LOOPBACK,
    Company,
    Upstream,
    allowed,
    client_of,
    get,
    name_loopback,
    proxies,
    serving,
    trusting,
    way_out,
)
from support.waiting import until

from codeact_team.core.streams import ByteStream
from codeact_team.errors import SandboxError
from codeact_team.executors.egress import Egress
from codeact_team.executors.settings import ExecutorConfig
from codeact_team.network import http
from codeact_team.network.http import RequestReader
from codeact_team.network.inside.first_line import PROXY
from codeact_team.network.rules import EgressRule
from codeact_team.network.way import Way

pytestmark = pytest.mark.usefixtures("lookups")


def rss_mib(pid: int | str = "self") -> float:
    """The memory of a process."""
    found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


async def is_served(way: Way, port: int, path: str = "/others") -> bool:
    """Whether another program of the sandbox gets its answer."""
    async with client_of(way) as client:
        site = f"a.test:{port}"
        return await client.ask(get(f"http://{site}{path}", site)) == (200, f"answer to {path}")


HANDSHAKES = {
    "another name": message(names(b"b.test")),
    "another name beyond byte 1024": message(extension(51, bytes(2000)) + names(b"b.test")),
    "no name": message(extension(51, bytes(8))),
    "a hidden name": message(names(b"a.test") + extension(0xFE0D, bytes(64))),
    "two names": message(names(b"a.test", b"b.test")),
}


@pytest.mark.parametrize("opened", [False, True], ids=["passed through", "opened"])
@pytest.mark.parametrize("handshake", HANDSHAKES)
async def test_tls_that_is_not_for_the_host_alone_reaches_nobody(
    handshake: str, opened: bool, upstream: Upstream
) -> None:
    rule = allowed("a.test", upstream.port, **({"paths": ["/*"]} if opened else {}))
    async with way_out(rule, allowed("b.test", upstream.port)) as way:
        for address, port in (PROXY, (way.hosts["a.test"], upstream.port)):
            async with client_of(way, address, port) as client:
                if (address, port) == PROXY:
                    assert await client.connect("a.test", upstream.port) == 200
                await client.send(in_records(HANDSHAKES[handshake]))
                assert await client.is_closed()
        [denied] = way.policy.take_denials()
        assert denied.reason.startswith("a connection to a.test was not begun as one by TLS to that host: ")
    assert upstream.heads == []


async def test_a_name_far_behind_in_a_handshake_is_read(tmp_path: Path) -> None:
    company, upstream = Company(tmp_path), Upstream()
    trust = ssl.create_default_context(cafile=str(company.file))
    # so many of them come before the name
    trust.set_alpn_protocols([f"protocol-{number}" for number in range(200)])
    async with (
        serving(upstream, company.server_of("a.test")) as port,
        way_out(allowed("a.test", port)) as way,
    ):
        async with client_of(way) as client:
            assert await client.connect("a.test", port) == 200
            await client.use_tls(trust, "a.test")
            assert (await client.ask(get("/x", "a.test")))[0] == 200


FRONTED = [
    ("GET /1", "b.test:{port}"),
    ("GET /1", "a.test"),
    ("GET /1", "x@a.test:{port}"),
    ("GET /1", "a.test:{port}."),
    # a whole URI is for a proxy, and nothing behind it is one
    ("GET https://b.test:{port}/1", "a.test:{port}"),
    ("CONNECT b.test:{port}", "b.test:{port}"),
]


async def test_fronting_is_refused_where_requests_are_read(tmp_path: Path) -> None:
    company, upstream = Company(tmp_path), Upstream()
    async with serving(upstream, company.server_of("a.test")) as port:
        rules = allowed("a.test", port, paths=["/*"]), allowed("b.test", port, paths=["/*"])
        async with way_out(*rules, extra_ca=[company.file]) as way:
            for request, host in FRONTED:
                async with client_of(way) as client:
                    assert await client.connect("a.test", port) == 200
                    await client.use_tls(trusting(way), "a.test")
                    asked = f"{request} HTTP/1.1\r\nHost: {host}\r\n\r\n".format(port=port)
                    assert (await client.ask(asked))[0] in (403, 405, 421)
    assert upstream.heads == []


async def test_http_2_without_being_agreed_on_is_refused_within_tls(tmp_path: Path) -> None:
    company, upstream = Company(tmp_path), Upstream()
    async with serving(upstream, company.server_of("a.test")) as port:
        rule = allowed("a.test", port, paths=["/*"])
        async with way_out(rule, extra_ca=[company.file]) as way, client_of(way) as client:
            assert await client.connect("a.test", port) == 200
            trust = trusting(way)
            trust.set_alpn_protocols(["h2", "http/1.1"])
            await client.use_tls(trust, "a.test")
            assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
            status, text = await client.ask("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\0\0\0\4\0\0\0\0\0")
            assert (status, "use HTTP/1.1" in text) == (505, True)
    assert upstream.connections == 0


async def test_what_follows_a_connect_in_the_same_bytes_goes_through_that_connection_only(
    upstream: Upstream,
) -> None:
    other = Upstream()
    async with (
        serving(other) as port,
        way_out(allowed("a.test", upstream.port), allowed("b.test", port)) as way,
    ):
        async with client_of(way) as client:
            site = f"a.test:{upstream.port}"
            await client.send(
                f"CONNECT {site} HTTP/1.1\r\nHost: {site}\r\n\r\n"
                + get(f"http://b.test:{port}/1", f"b.test:{port}")
            )
            assert (await client.response())[0] == 200
            assert (await client.response())[2] == f"answer to http://b.test:{port}/1".encode()
    assert other.connections == 0


async def test_where_an_answer_leads_is_decided_as_everything_else(upstream: Upstream) -> None:
    leading = Upstream(
        lambda _: (
            b"HTTP/1.1 302 Found\r\nLocation: http://b.test:%d/\r\nContent-Length: 0\r\n\r\n" % upstream.port
        )
    )
    async with serving(leading) as port, way_out(allowed("a.test", port)) as way:
        async with client_of(way) as client:
            await client.send(get(f"http://a.test:{port}/", f"a.test:{port}"))
            status, fields, _ = await client.response()
            assert (status, fields["location"]) == (302, f"http://b.test:{upstream.port}/")
            assert (await client.ask(get(fields["location"], f"b.test:{upstream.port}")))[0] == 403
    assert upstream.connections == 0


async def test_a_name_that_leads_elsewhere_the_second_time_is_looked_up_once_and_checked_each_time(
    upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {"a.test": ["127.0.0.1"]}
    asked = name_loopback(monkeypatch, known)
    rule = EgressRule(host="a.test", ports=[upstream.port], networks=LOOPBACK, decision="allow")
    async with way_out(rule) as way:
        async with client_of(way) as client:
            assert await client.connect("a.test", upstream.port) == 200
            assert asked == ["a.test"]
        known["a.test"] = ["127.0.0.2"]
        async with client_of(way) as client:
            assert await client.connect("a.test", upstream.port) == 403
    assert asked == ["a.test", "a.test"]


def chunks(count: int) -> bytes:
    return b"1\r\nx\r\n" * count + b"0\r\n\r\n"


@pytest.mark.parametrize("sender", ["code", "server"])
async def test_a_bomb_of_tiny_chunks_stalls_nobody(sender: str, upstream: Upstream) -> None:
    count = 80_000
    started = asyncio.Event()

    async def bomb(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        started.set()
        if sender == "code":
            await reader.readexactly(count)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        else:
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks(count))
        await writer.drain()

    async with (
        serving(bomb) as port,
        way_out(allowed("b.test", port, paths=["/*"]), allowed("a.test", upstream.port)) as way,
        client_of(way) as client,
    ):
        head = f"POST http://b.test:{port}/ HTTP/1.1\r\nHost: b.test:{port}\r\n"
        if sender == "code":
            await client.send(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode() + chunks(count))
        else:
            await client.send(f"{head}Content-Length: 0\r\n\r\n")
            await started.wait()
        bombing = asyncio.ensure_future(client.response())
        assert await is_served(way, upstream.port)
        assert not bombing.done()
        status, _, body = await bombing
        assert (status, len(body)) == (200, 0 if sender == "code" else count)


@pytest.mark.parametrize("sender", ["code", "server"])
async def test_a_bomb_of_header_fields_is_refused(sender: str) -> None:
    fields = "a:\r\n" * 10_000
    upstream = Upstream(f"HTTP/1.1 200 OK\r\n{fields}Content-Length: 0\r\n\r\n".encode())
    async with serving(upstream) as port, way_out(allowed("a.test", port)) as way, client_of(way) as client:
        site = f"a.test:{port}"
        status, text = await client.ask(
            get(f"http://{site}/", site, fields=fields if sender == "code" else "")
        )
        assert (status, "fields" in text) == (400 if sender == "code" else 502, True)
    assert len(upstream.heads) == (sender == "server")


class Trickle(ByteStream):
    """A head of a message that never ends."""

    async def _read(self) -> bytes:
        await asyncio.sleep(0.001)
        return b"x"

    async def write(self, data: bytes) -> None:
        raise AssertionError(data)

    async def write_eof(self) -> None:
        raise AssertionError

    def close(self) -> None:
        raise AssertionError

    def abort(self) -> None:
        raise AssertionError


async def test_a_head_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_HEAD_TIMEOUT", 0.05)
    with pytest.raises(TimeoutError):
        await RequestReader(Trickle()).next()


async def test_messages_that_do_not_end_stall_nobody(upstream: Upstream) -> None:
    site = f"a.test:{upstream.port}"
    begun = [
        f"GET http://{site}/ HTTP/1.1\r\nHost: ",
        f"POST http://{site}/ HTTP/1.1\r\nHost: {site}\r\nContent-Length: 9\r\n\r\nabc",
        f"POST http://{site}/ HTTP/1.1\r\nHost: {site}\r\nTransfer-Encoding: chunked\r\n\r\n1",
        f"CONNECT {site} HTTP/1.1\r\nHost: {site}\r\n\r\n\x16\x03\x01",
    ]
    async with way_out(allowed("a.test", upstream.port)) as way:
        async with AsyncExitStack() as clients:
            for number in range(200):
                client = await clients.enter_async_context(client_of(way))
                await client.send(begun[number % len(begun)])
            assert await is_served(way, upstream.port)
    assert [head for head in upstream.heads if b"/others" not in head] == []


async def test_who_does_not_read_stalls_nobody_and_takes_no_memory(upstream: Upstream) -> None:
    before = proxies()
    size, sent = 64 << 20, 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        while sent < 4 * size:
            writer.write(bytes(1 << 16))
            await writer.drain()
            sent += 1 << 16

    async with (
        serving(pour) as port,
        way_out(allowed("a.test", upstream.port, port), allowed("b.test", port, paths=["/*"])) as way,
        client_of(way) as through,
        client_of(way) as opened,
    ):
        [proxy] = proxies() - before
        memory = rss_mib(proxy)
        assert await through.connect("a.test", port) == 200
        await through.send(get("/", "a.test"))
        await opened.send(get(f"http://b.test:{port}/", f"b.test:{port}"))
        await through.reader.readexactly(1)
        await opened.reader.readexactly(1)
        assert await is_served(way, upstream.port)
        assert sent < size
        assert rss_mib(proxy) - memory < 24


async def read_slowly(client: Any) -> int:
    """Read to the end, after all that can be under way is."""
    await asyncio.sleep(0.2)
    return len(await client.reader.read(-1))


async def test_who_reads_slowly_gets_everything_though_the_connection_is_to_end() -> None:
    size = 3 << 20

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n" + bytes(size))
        writer.close()

    async with (
        serving(pour) as port,
        way_out(allowed("a.test", port), allowed("b.test", port, paths=["/*"])) as way,
    ):
        async with client_of(way) as client:
            assert await client.connect("a.test", port) == 200
            await client.send(get("/", "a.test"))
            # as programs do that have said everything
            client.writer.write_eof()
            assert await read_slowly(client) == size + len(b"HTTP/1.0 200 OK\r\n\r\n")
        async with client_of(way) as client:
            await client.send(f"GET http://b.test:{port}/ HTTP/1.0\r\nHost: b.test:{port}\r\n\r\n")
            head = await client.reader.readuntil(b"\r\n\r\n")
            assert b"content-length" not in head.lower()
            assert await read_slowly(client) == size


async def test_a_proxy_that_is_killed_in_the_middle_lets_nothing_pass_for_whole() -> None:
    before = proxies()
    go_on = asyncio.Event()

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n")
        await go_on.wait()

    async with serving(pour) as port, way_out(allowed("a.test", port, paths=["/*"])) as way:
        async with client_of(way) as client:
            await client.send(get(f"http://a.test:{port}/", f"a.test:{port}"))
            await client.reader.readuntil(b"abc\r\n")
            [proxy] = proxies() - before
            os.kill(proxy, signal.SIGKILL)
            assert await client.is_closed()
        await until(lambda: proxies() - before - {proxy})
        go_on.set()


@pytest.fixture
def full_disk(tmp_path: Path) -> Generator[Path]:
    """A directory on a disk that has no room for anything."""
    place = tmp_path / "full"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=2", "none", place]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this user cannot mount anything")
    try:
        (place / "file").write_bytes(bytes(4096))
        yield place
    finally:
        subprocess.run(["umount", place], check=True)


async def test_a_full_disk_is_said_in_words_and_leaves_nothing(
    full_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = proxies()
    monkeypatch.setattr("tempfile.tempdir", str(full_disk))
    egress = Egress(ExecutorConfig(egress=["a.test"]))
    with pytest.raises(SandboxError, match=r"of `egress`, .* No space left on device"):
        await egress.open()
    assert proxies() == before
    assert os.listdir(full_disk) == ["file"]


@pytest.mark.long
async def test_a_thousand_connections_at_once_take_little_memory(upstream: Upstream) -> None:
    before = proxies()
    rules = allowed("a.test", upstream.port), allowed("b.test", upstream.port, paths=["/*"])
    async with way_out(*rules) as way, AsyncExitStack() as clients:
        assert await is_served(way, upstream.port)
        [proxy] = proxies() - before
        memory, here = rss_mib(proxy), rss_mib()
        entered = [await clients.enter_async_context(client_of(way)) for _ in range(1000)]
        for number, client in enumerate(entered):
            if number % 2:
                assert await client.connect("a.test", upstream.port) == 200
            assert (await client.ask(get(f"http://b.test:{upstream.port}/", f"b.test:{upstream.port}")))[
                0
            ] == 200
        assert rss_mib(proxy) - memory < 80
        assert rss_mib() - here < 150
        assert await is_served(way, upstream.port)


@pytest.mark.long
async def test_thousands_that_ask_at_once_are_all_answered(upstream: Upstream) -> None:
    async with way_out(allowed("a.test", upstream.port)) as way:

        async def ask(number: int) -> int:
            async with client_of(way) as client:
                host = "a.test" if number % 2 else f"n{number}.test"
                return await client.connect(host, upstream.port)

        for _ in range(4):
            asking = asyncio.gather(*(ask(number) for number in range(1000)))
            assert [*await asking] == [403, 200] * 500
        assert len(way.policy.take_denials()) <= 20


async def test_a_flood_of_a_neighbour_stalls_only_itself(upstream: Upstream) -> None:
    rule = allowed("a.test", upstream.port)
    async with way_out(rule) as way, way_out(rule) as other, AsyncExitStack() as flood:
        for _ in range(2100):
            await flood.enter_async_context(client_of(other, token="0" * 63 + "g"))
        assert await is_served(way, upstream.port)
