"""What code reaches through the proxy, and what it does not. Servers are on this machine's loopback, with names of their own."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from support.egress import (
    Company,
    Upstream,
    allowed,
    client_of,
    get,
    serving,
    trusting,
    way_out,
)
from support.waiting import until

from codeact_team.core.network_events import RequestDenied
from codeact_team.network.rules import EgressRule


async def test_a_connection_to_an_allowed_host_is_passed_through(
    lookups: list[str], upstream: Upstream
) -> None:
    port = upstream.port
    async with way_out(allowed("a.test", port)) as way, client_of(way) as client:
        assert await client.connect("a.test", port) == 200
        assert await client.ask(get("/x", "a.test")) == (200, "answer to /x")


async def test_a_program_that_knows_no_proxy_reaches_the_host_by_the_sandboxs_own_address(
    lookups: list[str], upstream: Upstream
) -> None:
    async with way_out(allowed("a.test", upstream.port)) as way:
        assert way.hosts == {"a.test": "127.1.1.1"}
        async with client_of(way, way.hosts["a.test"], upstream.port) as client:
            assert await client.ask(get("/x", "a.test")) == (200, "answer to /x")


async def test_a_host_that_no_rule_allows_is_denied_in_words_and_its_name_is_not_looked_up(
    lookups: list[str], upstream: Upstream
) -> None:
    port = upstream.port
    async with way_out(allowed("a.test", port)) as way:
        async with client_of(way) as client:
            status, text = await client.ask(f"CONNECT b.test:{port} HTTP/1.1\r\nHost: b.test\r\n\r\n")
            assert (status, "b.test" in text) == (403, True)
        async with client_of(way) as client:
            status, text = await client.ask(get(f"http://b.test:{port}/secret-in-a-name", f"b.test:{port}"))
            assert (status, "not allowed" in text) == (403, True)
        assert [(one.host, one.port) for one in way.policy.take_denials()] == [("b.test", port)]
    assert lookups == []
    assert upstream.heads == []


async def test_requests_are_decided_one_by_one_where_a_rule_has_methods_or_paths(
    lookups: list[str], upstream: Upstream
) -> None:
    site = f"a.test:{upstream.port}"
    async with way_out(allowed("a.test", upstream.port, methods=["GET"], paths=["/open/*"])) as way:
        async with client_of(way) as client:
            assert (await client.ask(get(f"http://{site}/open/1", site)))[0] == 200
            assert (await client.ask(get(f"http://{site}/closed", site)))[0] == 403
            assert (await client.ask(get(f"http://{site}/open/2", site, method="POST", body="x")))[0] == 403
            assert (await client.ask(get(f"http://{site}/open/3?q=1", site)))[0] == 200
    assert [head.split()[1] for head in upstream.heads] == [b"/open/1", b"/open/3?q=1"]


async def test_a_host_over_tls_is_opened_by_a_certificate_of_the_sandboxs_own_and_proves_itself_upstream(
    lookups: list[str], tmp_path: Path
) -> None:
    company, upstream = Company(tmp_path), Upstream()
    async with serving(upstream, company.server_of("a.test")) as port:
        rule = allowed("a.test", port, paths=["/open/*"])
        async with way_out(rule, extra_ca=[company.file]) as way, client_of(way) as client:
            assert await client.connect("a.test", port) == 200
            await client.use_tls(trusting(way), "a.test")
            assert await client.ask(get("/open/1", f"a.test:{port}")) == (200, "answer to /open/1")
            assert (await client.ask(get("/closed", f"a.test:{port}")))[0] == 403
        # nobody vouches for the server there
        async with way_out(rule) as way, client_of(way) as client:
            assert await client.connect("a.test", port) == 200
            await client.use_tls(trusting(way), "a.test")
            status, text = await client.ask(get("/open/1", f"a.test:{port}"))
            assert (status, "does not prove" in text) == (502, True)
    assert len(upstream.heads) == 1


async def test_tls_that_is_passed_through_has_to_name_the_host(lookups: list[str], tmp_path: Path) -> None:
    company, upstream = Company(tmp_path), Upstream()
    trust = ssl.create_default_context(cafile=str(company.file))
    async with (
        serving(upstream, company.server_of("a.test")) as port,
        way_out(allowed("a.test", port), extra_ca=[company.file]) as way,
    ):
        async with client_of(way) as client:
            assert await client.connect("a.test", port) == 200
            await client.use_tls(trust, "a.test")
            assert (await client.ask(get("/x", "a.test")))[0] == 200
        async with client_of(way) as client:
            assert await client.connect("a.test", port) == 200
            with pytest.raises(OSError):  # noqa: PT011 - the connection is cut in one way or another
                await client.use_tls(trust, "other.test")
        said: list[RequestDenied] = []
        await until(lambda: said.extend(way.policy.take_denials()) or said)
        assert "names other.test" in said[0].reason


async def test_addresses_of_this_machine_are_refused_unless_a_rule_names_their_network(
    lookups: list[str], upstream: Upstream
) -> None:
    rule = EgressRule(host="a.test", ports=[upstream.port], decision="allow")
    async with way_out(rule) as way, client_of(way) as client:
        status, text = await client.ask(f"CONNECT a.test:{upstream.port} HTTP/1.1\r\nHost: a.test\r\n\r\n")
        assert (status, "loopback" in text) == (403, True)
    assert upstream.connections == 0


async def test_only_who_has_the_token_of_the_sandbox_gets_out(lookups: list[str], upstream: Upstream) -> None:
    async with way_out(allowed("a.test", upstream.port)) as way, way_out() as other:
        for token in (other.opened.token, "0" * 64, "f" * 63 + "g"):
            async with client_of(way, token=token) as client:
                assert await client.is_closed()
    assert upstream.connections == 0


SMUGGLED = {
    "two lengths": "POST {url} HTTP/1.1\r\nHost: {site}\r\nContent-Length: 3\r\nContent-Length: 30\r\n\r\nabc",
    "a length, and chunks": (
        "POST {url} HTTP/1.1\r\nHost: {site}\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    ),
    "another coding than chunks": "POST {url} HTTP/1.1\r\nHost: {site}\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "two hosts": "GET {url} HTTP/1.1\r\nHost: {site}\r\nHost: b.test\r\n\r\n",
    "another host": "GET {url} HTTP/1.1\r\nHost: b.test\r\n\r\n",
    "no host": "GET {url} HTTP/1.1\r\n\r\n",
    "a folded field": "GET {url} HTTP/1.1\r\nHost: {site}\r\nX: 1\r\n Y: 2\r\n\r\n",
    "a bare line feed": "GET {url} HTTP/1.1\r\nHost: {site}\nX: 1\r\n\r\n",
    "a bare carriage return": "GET {url} HTTP/1.1\r\nHost: {site}\r\nX: 1\rY: 2\r\n\r\n",
    "a blank before the colon": "GET {url} HTTP/1.1\r\nHost: {site}\r\nContent-Length : 3\r\n\r\n",
    "a NUL": "GET {url} HTTP/1.1\r\nHost: {site}\r\nX: \0\r\n\r\n",
    "a control character in the line": "GET {url}\x0bx HTTP/1.1\r\nHost: {site}\r\n\r\n",
    "an empty line first": "\r\nGET {url} HTTP/1.1\r\nHost: {site}\r\n\r\n",
    "two blanks in the line": "GET  {url} HTTP/1.1\r\nHost: {site}\r\n\r\n",
    "another version": "GET {url} HTTP/1.2\r\nHost: {site}\r\n\r\n",
    "HTTP/2 at once": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a detour in the path": "GET {url}/../closed HTTP/1.1\r\nHost: {site}\r\n\r\n",
    "an encoded detour": "GET {url}/%2e%2e/closed HTTP/1.1\r\nHost: {site}\r\n\r\n",
    "a user in the address": "GET http://x@{site}/open/1 HTTP/1.1\r\nHost: {site}\r\n\r\n",
    "a web socket": "GET {url} HTTP/1.1\r\nHost: {site}\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    "a head without an end": "GET {url} HTTP/1.1\r\nHost: {site}\r\nX: " + "x" * 70_000,
}


@pytest.mark.parametrize("wrong", SMUGGLED)
async def test_what_two_programs_could_read_differently_is_refused(
    wrong: str, lookups: list[str], upstream: Upstream
) -> None:
    site = f"a.test:{upstream.port}"
    request = SMUGGLED[wrong].format(url=f"http://{site}/open/1", site=site)
    async with way_out(allowed("a.test", upstream.port, paths=["/open/*"])) as way, client_of(way) as client:
        status, text = await client.ask(request)
        assert status in (400, 403, 421, 431, 501, 505), text
    assert upstream.heads == []


async def test_a_second_request_in_the_same_bytes_is_decided_by_itself(
    lookups: list[str], upstream: Upstream
) -> None:
    site = f"a.test:{upstream.port}"
    async with way_out(allowed("a.test", upstream.port, paths=["/open/*"])) as way, client_of(way) as client:
        first = get(f"http://{site}/open/1", site, method="POST", body="abc")
        await client.send(first + get(f"http://{site}/closed", site) + get(f"http://{site}/open/2", site))
        assert [(await client.response())[0] for _ in range(3)] == [200, 403, 200]
    assert [head.split()[1] for head in upstream.heads] == [b"/open/1", b"/open/2"]


async def test_requests_are_written_anew(lookups: list[str], upstream: Upstream) -> None:
    site = f"a.test:{upstream.port}"
    async with way_out(allowed("a.test", upstream.port, paths=["/*"])) as way, client_of(way) as client:
        await client.send(
            f"POST http://{site}/1 HTTP/1.1\r\nhost: A.test:{upstream.port}\r\nConnection: x-mine\r\nX-Mine: 1\r\nProxy-Authorization: x\r\n"
            "X-Kept: 1\r\nTransfer-Encoding: chunked\r\n\r\n2;ext=1\r\nab\r\n1\r\nc\r\n0\r\nX-Trailer: 1\r\n\r\n"
        )
        assert (await client.response())[0] == 200
    assert upstream.heads == [
        b"POST /1 HTTP/1.1\r\nHost: %s\r\nX-Kept: 1\r\nContent-Length: 3\r\n\r\nabc" % site.encode()
    ]


@pytest.mark.parametrize(
    ("method", "answer", "expected_status", "expected"),
    [
        ("GET", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 200, b"abc"),
        ("GET", b"HTTP/1.0 200 OK\r\nConnection: close\r\n\r\nabc", 200, b"abc"),
        ("GET", b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        ("HEAD", b"HTTP/1.1 200 OK\r\nContent-Length: 30\r\n\r\n", 200, b""),
        ("GET", b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200, b""),
        ("GET", b"HTTP/1.1 302 Found\r\nLocation: http://b.test/\r\nContent-Length: 2\r\n\r\nab", 302, b"ab"),
    ],
)
async def test_answers_of_every_form_arrive(
    method: str, answer: bytes, expected_status: int, expected: bytes, lookups: list[str]
) -> None:
    upstream = Upstream(answer)
    async with serving(upstream) as port, way_out(allowed("a.test", port, paths=["/*"])) as way:
        async with client_of(way) as client:
            for _ in range(2):
                await client.send(get(f"http://a.test:{port}/", f"a.test:{port}", method=method))
                has_body = method != "HEAD" and b"204" not in answer
                status, _, body = await client.response(has_body=has_body)
                assert (status, body) == (expected_status, expected)


async def test_an_answer_comes_piece_by_piece(lookups: list[str]) -> None:
    may_end = asyncio.Event()

    async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n8\r\ndata: 1\n\r\n"
        )
        await may_end.wait()
        writer.write(b"0\r\n\r\n")
        writer.close()

    async with serving(stream) as port, way_out(allowed("a.test", port, paths=["/*"])) as way:
        async with client_of(way) as client:
            await client.send(get(f"http://a.test:{port}/", f"a.test:{port}"))
            await client.reader.readuntil(b"data: 1\n\r\n")
            may_end.set()
            await client.reader.readuntil(b"0\r\n\r\n")


async def test_large_bodies_pass_both_ways(lookups: list[str]) -> None:
    size = 5 << 20
    upstream = Upstream(lambda got: b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size + b"y" * size)
    async with serving(upstream) as port, way_out(allowed("a.test", port, paths=["/*"])) as way:
        async with client_of(way) as client:
            request = get(f"http://a.test:{port}/", f"a.test:{port}", method="PUT", body="x" * size)
            status, body = await client.ask(request)
            assert (status, len(body)) == (200, size)
    assert len(upstream.heads[0].partition(b"\r\n\r\n")[2]) == size


@pytest.mark.parametrize(
    ("method", "steps", "status"),
    [("OPTIONS", "5", 200), ("TRACE", "0", 501), ("OPTIONS", "-1", 400), ("GET", "0", 200)],
)
async def test_a_request_goes_no_further_than_it_says(
    method: str, steps: str, status: int, lookups: list[str], upstream: Upstream
) -> None:
    site = f"a.test:{upstream.port}"
    async with way_out(allowed("a.test", upstream.port)) as way, client_of(way) as client:
        request = get(f"http://{site}/", site, method=method, fields=f"Max-Forwards: {steps}\r\n")
        assert (await client.ask(request))[0] == status
    sent = b"".join(upstream.heads)
    assert (b"Max-Forwards: 4\r\n" in sent) == (steps == "5")
    assert bool(sent) == (status == 200)


@pytest.mark.parametrize(
    "field", ["X-HTTP-Method-Override: DELETE", "x_http_method: PUT", "X-Original-URL: /closed"]
)
async def test_a_field_by_which_a_server_might_do_something_else_is_refused(
    field: str, lookups: list[str], upstream: Upstream
) -> None:
    site = f"a.test:{upstream.port}"
    rule = allowed("a.test", upstream.port, methods=["POST"], paths=["/open"])
    async with way_out(rule) as way, client_of(way) as client:
        status, text = await client.ask(
            get(f"http://{site}/open", site, method="POST", fields=f"{field}\r\n")
        )
        assert (status, "another method or path" in text) == (403, True)
    assert upstream.heads == []


@pytest.mark.long
async def test_bodies_that_do_not_end_take_bounded_memory_and_the_others_pass(
    lookups: list[str], upstream: Upstream
) -> None:
    site = f"a.test:{upstream.port}"
    head = f"POST http://{site}/ HTTP/1.1\r\nHost: {site}\r\nContent-Length: 1000001\r\n\r\n"
    async with way_out(allowed("a.test", upstream.port)) as way, AsyncExitStack() as clients:
        for _ in range(70):
            client = await clients.enter_async_context(client_of(way))
            await client.send(head.encode() + bytes(1_000_000))
        # 64 MiB are kept until the last byte comes; what has no room is asked about and sent as it comes
        await until(lambda: upstream.connections >= 2)
        async with client_of(way) as client:
            assert (await client.ask(get(f"http://{site}/x", site)))[0] == 200
