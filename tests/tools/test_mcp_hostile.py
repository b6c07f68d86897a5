"""MCP servers that send more than they may: they are disconnected, and the error says why."""

from __future__ import annotations

import asyncio
import gzip
import json
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from autogen_core import CancellationToken
from autogen_ext.tools.mcp import McpWorkbench, SseServerParams, StdioServerParams, StreamableHttpServerParams
from support.variations import mostly_long

from codeact_team.errors import WorkbenchError
from codeact_team.tools import mcp, mcp_transport
from codeact_team.tools.sources import ToolFailed
from codeact_team.tools.toolbox import Toolbox

pytestmark = [
    # AutoGen 0.7.5 calls what mcp 1.30 has deprecated
    pytest.mark.filterwarnings("ignore:Use `streamable_http_client` instead:DeprecationWarning"),
]

# a server that behaves until it is asked for its tools, or to call one
PROGRAM = """
import json, sys
def answer(request, result):
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
def write_for_ever(piece):
    while True: sys.stdout.write(piece)
for line in sys.stdin:
    request = json.loads(line)
    if request["method"] == "initialize":
        info = {"name": "mean", "version": "1"}
        print("debugging is on")
        answer(request, {"protocolVersion": "2025-03-26", "capabilities": {}, "serverInfo": info})
    elif request["method"] == "tools/list":
        LISTS
    elif request["method"] == "tools/call":
        CALLS
"""
TOOL = '{"name": "t", "inputSchema": {"type": "object"}}'
LISTS_ONE = f'answer(request, {{"tools": [{TOOL}]}})'
CALLED = {
    "many values": (
        "answer(request, {'content': [], 'structuredContent': {'a': [1] * 30000}})",
        "more than 10,000 values",
    ),
    "many pieces": (
        "answer(request, {'content': [{'type': 'text', 'text': 'A'}] * 3000})",
        "'content' of more than 2,000 parts",
    ),
    "an answer without an end": ("write_for_ever('A' * 1000)", "a message of more than 1 MiB"),
    "and without a line": ("write_for_ever('[')", "a message of more than 1 MiB"),
}
LISTED = {
    "many tools": (f"answer(request, {{'tools': [{TOOL}] * 6000}})", "'tools' of more than 5,000 parts"),
    "pages without an end": (
        f"answer(request, {{'tools': [{TOOL[:-2]}, 'description': 'x' * 500000}}}}], 'nextCursor': 'x'}})",
        "more than 2 MiB",
    ),
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small limits, which are reached sooner."""
    monkeypatch.setattr(mcp_transport, "MAX_MESSAGE", 1 << 20)
    monkeypatch.setattr(mcp, "MAX_LISTED", 2 << 20)


def program(calls: str = "pass", lists: str = LISTS_ONE) -> McpWorkbench:
    script = PROGRAM.replace("LISTS", lists).replace("CALLS", calls)
    return McpWorkbench(
        StdioServerParams(command=sys.executable, args=["-c", script], read_timeout_seconds=100)
    )


async def called(workbench: McpWorkbench) -> Any:
    toolbox = Toolbox(workbenches=[workbench])
    try:
        [tool] = (await toolbox.offer()).tools
        return await tool.call(tool.read({}), CancellationToken())
    finally:
        await toolbox.stop()


@pytest.mark.parametrize(("calls", "said"), mostly_long(CALLED.values()), ids=CALLED)
async def test_too_much_in_an_answer_fails_the_call(
    calls: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_transport, "MAX_VALUES", 10_000)
    with pytest.raises(ToolFailed, match=f"the server has sent .*{said}"):
        await called(program(calls))


@pytest.mark.parametrize(("lists", "said"), LISTED.values(), ids=LISTED)
async def test_too_much_in_a_list_of_tools_is_an_error(lists: str, said: str) -> None:
    with pytest.raises(WorkbenchError, match=f"does not list its tools: .*{said}"):
        await called(program(lists=lists))


async def test_much_that_is_no_more_than_it_may_be_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_transport, "MAX_VALUES", 10_000)
    # what separates values counts only where it does
    text = "a, [b], {c}\n\\" * 50_000
    calls = f"answer(request, {{'content': [{{'type': 'text', 'text': {text[:13]!r} * 50000}}] }})"
    assert await called(program(calls)) == [text]


@pytest.mark.long
async def test_a_schema_of_forty_thousand_required_names_takes_little_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mcp_transport, "MAX_MESSAGE", 8 << 20)
    names = "['n%d' % n for n in range(40000)]"
    lists = f"answer(request, {{'tools': [{{'name': 't', 'inputSchema': {{'type': 'object', 'required': {names}}}}}]}})"
    with pytest.raises(WorkbenchError, match=r"the descriptions of tools have more than 2,097,152 bytes"):
        await called(program(lists=lists))


def says(status: int) -> Callable[[web.Request], Any]:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(status=status)

    return answer


@asynccontextmanager
async def listening(*routes: web.RouteDef) -> AsyncGenerator[str]:
    """A server over HTTP with these routes; its URL."""
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


Write = Callable[[web.StreamResponse], Any]


@asynccontextmanager
async def serving(
    kind: str, headers: dict[str, str], write: Write, *, from_the_start: bool = False
) -> AsyncGenerator[str]:
    """A server over HTTP that answers a call with what is written, or whatever it is asked."""

    async def post(request: web.Request) -> web.StreamResponse:
        message = await request.json()
        method, results = (
            message["method"],
            {
                "initialize": {
                    "protocolVersion": "2025-03-26",
                    "capabilities": {},
                    "serverInfo": {"name": "m", "version": "1"},
                },
                "tools/list": {"tools": [json.loads(TOOL)]},
            },
        )
        if method in results and not from_the_start:
            return web.json_response({"jsonrpc": "2.0", "id": message["id"], "result": results[method]})
        if method != "tools/call" and not from_the_start:
            return web.Response(status=202)
        response = web.StreamResponse(headers={"content-type": kind, **headers})
        await response.prepare(request)
        await write(response)
        return response

    async with listening(web.post("/mcp", post), web.get("/mcp", says(405))) as url:
        yield f"{url}/mcp"


async def for_ever(response: web.StreamResponse, first: bytes, piece: bytes) -> None:
    await response.write(first)
    while True:
        await response.write(piece)
        await asyncio.sleep(0)


async def compressed(response: web.StreamResponse) -> None:
    await response.write(gzip.compress(bytes(100 << 20)))


OVER_HTTP: dict[str, tuple[str, dict[str, str], Write, str]] = {
    "json": (
        "application/json",
        {},
        lambda r: for_ever(r, b'{"jsonrpc": "2.0", "result": "', b"A" * 50_000),
        "a message of more",
    ),
    "an event": (
        "text/event-stream",
        {},
        lambda r: for_ever(r, b"data: ", b"A" * 50_000),
        "a message of more",
    ),
    "lines of an event": (
        "text/event-stream",
        {},
        lambda r: for_ever(r, b"", b"data: A\n" * 5_000),
        "an event of more",
    ),
    "compressed": ("application/json", {"content-encoding": "gzip"}, compressed, "a compressed answer"),
}


@pytest.mark.parametrize(
    ("kind", "headers", "write", "said"), mostly_long(OVER_HTTP.values(), usual=2), ids=OVER_HTTP
)
async def test_too_much_over_http_fails_the_call(
    kind: str, headers: dict[str, str], write: Write, said: str
) -> None:
    async with serving(kind, headers, write) as url:
        with pytest.raises(ToolFailed, match=f"the server has sent {said}"):
            await called(McpWorkbench(StreamableHttpServerParams(url=url)))


async def test_too_much_in_the_first_answer_is_an_error() -> None:
    kind, headers, write, said = OVER_HTTP["json"]
    async with serving(kind, headers, write, from_the_start=True) as url:
        with pytest.raises(WorkbenchError, match=f"does not start: the server has sent {said}"):
            await called(McpWorkbench(StreamableHttpServerParams(url=url)))


async def test_too_much_over_sse_is_an_error() -> None:
    async def get(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await for_ever(response, b"event: endpoint\ndata: /post\n\ndata: ", b"A" * 50_000)
        return response

    async with listening(web.get("/sse", get), web.post("/post", says(202))) as url:
        with pytest.raises(WorkbenchError, match="the server has sent a message of more than 1 MiB"):
            await called(McpWorkbench(SseServerParams(url=f"{url}/sse")))
