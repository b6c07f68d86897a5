"""Code calls servers with keys that it never sees, and neither an answer nor a refusal tells it one."""

from __future__ import annotations

import asyncio
import base64
import gzip
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from support.egress import (
    Client,
    Company,
    Upstream,
    allowed,
    client_of,
    get,
    name_loopback,
    serving,
    trusting,
    way_out,
)

from codeact_team.network.authority import Authority
from codeact_team.network.rules import Credential
from codeact_team.network.way import Way

KEY = "sk-real/0123456789+abcdef"
TOKEN = Credential(name="TOKEN", hosts=["api.test"])
HELD = TOKEN.model_copy(update={"placeholder": "sk-" + 20 * "*"})


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    name_loopback(monkeypatch)


@asynccontextmanager
async def opened(
    upstream: Upstream, directory: Path, credential: Credential, host: str = "api.test"
) -> AsyncGenerator[tuple[Client, Way]]:
    """A connection by TLS to a server whose requests may have the key, or to another one."""
    company = Company(directory)
    async with serving(upstream, company.server_of(host)) as port:
        rules = [allowed(name, port, paths=["*"]) for name in ("api.test", "other.test")]
        async with (
            way_out(*rules, extra_ca=[company.file], credentials=[credential], values={"TOKEN": KEY}) as way,
            client_of(way) as client,
        ):
            assert await client.connect(host, port) == 200
            await client.use_tls(trusting(way), host)
            yield client, way


def site(upstream: Upstream, host: str = "api.test") -> str:
    return f"{host}:{upstream.port}"


def placeholder_of(way: Way) -> str:
    return way.opened.credentials[0]["placeholder"]


async def test_each_request_gets_the_key_on_its_way(tmp_path: Path) -> None:
    upstream = Upstream()
    async with opened(upstream, tmp_path, TOKEN) as (client, _):
        for path in ("/a", "/b"):
            assert await client.ask(get(path, site(upstream))) == (200, f"answer to {path}")
    for head in upstream.heads:
        assert f"Authorization: Bearer {KEY}\r\n".encode() in head
        assert b"Accept-Encoding: identity\r\n" in head


async def test_a_placeholder_becomes_the_key_in_its_header(tmp_path: Path) -> None:
    upstream = Upstream()
    async with opened(upstream, tmp_path, HELD) as (client, way):
        user = base64.b64encode(f"user:{placeholder_of(way)}".encode()).decode()
        for value in (f"Bearer {placeholder_of(way)}", f"Basic {user}"):
            assert (await client.ask(get("/", site(upstream), fields=f"Authorization: {value}\r\n")))[
                0
            ] == 200
    basic = base64.b64encode(f"user:{KEY}".encode()).decode()
    assert [f"Authorization: {sent}\r\n".encode() in head
            for sent, head in zip((f"Bearer {KEY}", f"Basic {basic}"), upstream.heads, strict=True)] == [True, True]  # fmt: skip


@pytest.mark.parametrize(
    ("host", "parts"),
    [
        ("api.test", {"url": "/?key={held}"}),
        ("api.test", {"fields": "X-Debug: {held}\r\n"}),
        ("api.test", {"method": "POST", "body": "key={held}"}),
        ("api.test", {"method": "TRACE", "fields": "Authorization: Bearer {held}\r\n"}),
        ("other.test", {"fields": "Authorization: Bearer {held}\r\n"}),
    ],
)
async def test_a_placeholder_elsewhere_is_refused_in_words_and_nothing_is_sent(
    host: str, parts: Mapping[str, str], tmp_path: Path
) -> None:
    upstream = Upstream()
    async with opened(upstream, tmp_path, HELD, host) as (client, way):
        request = {"url": "/"} | {name: part.format(held=placeholder_of(way)) for name, part in parts.items()}
        status, text = await client.ask(get(host=site(upstream, host), **request))
        assert (status, "placeholder of TOKEN" in text, KEY in text) == (403, True, False)
    assert upstream.heads == []


async def test_a_placeholder_at_the_end_of_a_long_body_breaks_the_request_off(tmp_path: Path) -> None:
    upstream = Upstream()
    async with opened(upstream, tmp_path, HELD) as (client, way):
        body = 1_200_000 * "x" + placeholder_of(way)
        status, text = await client.ask(get("/", site(upstream), method="POST", body=body))
        assert (status, "placeholder of TOKEN stands in the body" in text) == (403, True)
    assert upstream.heads == []


async def test_over_plain_http_there_is_no_key(tmp_path: Path) -> None:
    upstream = Upstream()
    async with serving(upstream) as port:
        rule = allowed("api.test", port, paths=["*"])
        async with way_out(rule, credentials=[TOKEN], values={"TOKEN": KEY}) as way, client_of(way) as client:
            assert (await client.ask(get(f"http://{site(upstream)}/", site(upstream))))[0] == 200
        async with way_out(rule, credentials=[HELD], values={"TOKEN": KEY}) as way, client_of(way) as client:
            fields = f"Authorization: Bearer {placeholder_of(way)}\r\n"
            status, text = await client.ask(get(f"http://{site(upstream)}/", site(upstream), fields=fields))
            assert (status, "not over plain HTTP" in text) == (403, True)
    [head] = upstream.heads
    assert b"uthorization" not in head
    assert port == upstream.port


SPELLINGS: dict[str, Callable[[bytes], bytes]] = {
    "as it is": bytes,
    "base64": base64.b64encode,
    "in a URL": lambda head: quote(head, safe="").encode(),
    "hex": lambda head: head.hex().encode(),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_an_answer_that_repeats_the_request_does_not_show_the_key(
    spelling: str, tmp_path: Path
) -> None:
    spell = SPELLINGS[spelling]

    def echo(head: bytes) -> bytes:
        body = gzip.compress(spell(head))
        fields = (
            f"X-Echo: {quote(KEY, safe='')}\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return f"HTTP/1.1 200 OK\r\n{fields}".encode() + body

    upstream = Upstream(echo)
    async with opened(upstream, tmp_path, TOKEN) as (client, _):
        await client.send(get("/", site(upstream)))
        status, fields, body = await client.response()
    assert (status, fields["x-echo"]) == (200, "[TOKEN]")
    assert "content-encoding" not in fields
    assert b"[TOKEN]" in body
    # base64 of more than the key has some bits of it at the ends
    assert spell(KEY.encode())[4:-4] not in body


async def test_an_answer_that_cannot_be_read_is_refused_in_words(tmp_path: Path) -> None:
    upstream = Upstream(b"HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 1\r\n\r\nx")
    async with opened(upstream, tmp_path, TOKEN) as (client, _):
        status, text = await client.ask(get("/", site(upstream)))
    assert (status, "encoded as 'br'" in text) == (502, True)


async def test_events_stream_one_by_one(tmp_path: Path) -> None:
    got = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        for event in (b"data: one\n\n", b"data: two\n\n"):
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            await writer.drain()
            # nothing more comes until the code has this
            await got.wait()
            got.clear()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    company = Company(tmp_path)
    async with serving(serve, company.server_of("api.test")) as port:
        rule = allowed("api.test", port)
        async with (
            way_out(rule, extra_ca=[company.file], credentials=[TOKEN], values={"TOKEN": KEY}) as way,
            client_of(way) as client,
        ):
            assert await client.connect("api.test", port) == 200
            await client.use_tls(trusting(way), "api.test")
            await client.send(get("/", f"api.test:{port}"))
            for event in (b"data: one\n\n", b"data: two\n\n"):
                await client.reader.readuntil(event)
                got.set()


async def test_variables_of_this_process_make_no_server_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream, evil = Upstream(), Authority.create()
    (tmp_path / "evil.pem").write_text(evil.certificate_pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "evil.pem"))
    async with serving(upstream, evil.leaf_for("api.test")) as port:
        rule = allowed("api.test", port, paths=["*"])
        async with way_out(rule, credentials=[TOKEN], values={"TOKEN": KEY}) as way, client_of(way) as client:
            assert await client.connect("api.test", port) == 200
            await client.use_tls(trusting(way), "api.test")
            assert (await client.ask(get("/", f"api.test:{port}")))[0] == 502
    assert upstream.heads == []
