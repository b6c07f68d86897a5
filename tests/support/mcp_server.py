"""A small MCP server: `python mcp_server.py` over stdio, `python mcp_server.py PORT` over HTTP on 127.0.0.1.

Its name is in MCP_TEST_NAME, what it pretends about itself in MCP_TEST_ODDITY.
"""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from enum import Enum
from typing import Annotated, Any

from mcp import types
from mcp.server.fastmcp import Context, FastMCP
from pydantic import BaseModel, Field

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

NAME = os.environ.get("MCP_TEST_NAME", "order-desk")
ODDITY = os.environ.get("MCP_TEST_ODDITY", "")

server = FastMCP(NAME, host="127.0.0.1", log_level="ERROR")


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


class Line(BaseModel):
    sku: str = Field(description="The article")
    count: int = Field(1, ge=1, le=99)
    size: Size = Size.SMALL


class Order(BaseModel):
    number: int
    lines: list[Line]
    note: str | None = None


@server.tool()
def get_order(number: Annotated[int, Field(description="The order's number")]) -> Order:
    """Look up an order."""
    return Order(number=number, lines=[Line(sku="bolt", count=2)])


@server.tool(name="place-order")
def place_order(lines: list[Line], note: str | None = None) -> dict[str, Any]:
    """Place an order.

    It cannot be cancelled.
    """
    return {"lines": [line.model_dump(mode="json") for line in lines], "note": note}


@server.tool()
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


@server.tool(structured_output=False)
async def ask_model(question: str, context: Context[Any, Any, Any]) -> str:
    """Ask the model of the client."""
    asked = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=question))
    answer = await context.session.create_message([asked], max_tokens=100)
    assert isinstance(answer.content, types.TextContent)
    return answer.content.text


@server.tool(structured_output=False)
def echo(value: Any) -> str:
    """Say it again."""
    return repr(value)


@server.tool(structured_output=False)
def many_things() -> list[Any]:
    """Text, a picture, sound, a file, and links to more."""
    return [
        types.TextContent(type="text", text="hello"),
        types.ImageContent(type="image", data=base64.b64encode(PNG).decode(), mimeType="image/png"),
        types.AudioContent(type="audio", data=base64.b64encode(b"RIFF").decode(), mimeType="audio/wav"),
        types.EmbeddedResource(
            type="resource",
            resource=types.BlobResourceContents.model_validate(
                {"uri": "file:///a.bin", "blob": base64.b64encode(b"\x00\x01").decode(), "mimeType": "odd"}
            ),
        ),
        types.EmbeddedResource(
            type="resource",
            resource=types.TextResourceContents.model_validate(
                {"uri": "file:///a.txt", "text": "words", "mimeType": "text/plain"}
            ),
        ),
        types.ResourceLink.model_validate({"type": "resource_link", "uri": "file:///b.txt", "name": "b"}),
    ]


@server.tool()
def fail(with_variable: str = "") -> str:
    """Fail, and tell a variable of the environment."""
    raise ValueError(f"there is no such order {os.environ.get(with_variable, '')}")


_meeting: set[int] = set()
_all_there = asyncio.Event()


@server.tool()
async def meet(number: int, others: int) -> int:
    """Wait until so many calls are under way at once."""
    _meeting.add(number)
    if len(_meeting) == others:
        _all_there.set()
    await _all_there.wait()
    return number


_waiting, _ended = asyncio.Event(), asyncio.Event()


@server.tool()
async def wait_for_ever() -> str:
    """Wait."""
    _waiting.set()
    try:
        await asyncio.Event().wait()
    finally:
        _ended.set()
    return ""


@server.tool()
async def when_waiting() -> str:
    """Return when somebody waits for ever."""
    await _waiting.wait()
    return ""


@server.tool()
async def when_ended() -> str:
    """Return when that has ended."""
    await _ended.wait()
    return ""


@server.tool()
def process_id() -> int:
    """The server's process."""
    return os.getpid()


@server.tool()
def die() -> str:
    """End the server."""
    os._exit(3)


def _list_in_pages() -> None:
    @server._mcp_server.list_tools()  # pyright: ignore[reportPrivateUsage, reportUntypedFunctionDecorator]
    async def list_page(  # pyright: ignore[reportUnusedFunction]
        request: types.ListToolsRequest,
    ) -> types.ListToolsResult:
        page = int(request.params.cursor) if request.params and request.params.cursor else 0
        tools = [
            types.Tool(name=f"tool_{page}_{number}", inputSchema={"type": "object"}) for number in range(50)
        ]
        return types.ListToolsResult(tools=tools, nextCursor=str(page + 1) if page < 3 else None)


def _list_odd_names() -> None:
    @server._mcp_server.list_tools()  # pyright: ignore[reportPrivateUsage, reportUntypedFunctionDecorator]
    async def list_tools() -> list[types.Tool]:  # pyright: ignore[reportUnusedFunction]
        names = ["get-order", "get_order", "get order", "class", "ToolError", "3d", "__init__", "größe"]
        return [types.Tool(name=name, inputSchema={"type": "object"}) for name in names]


def _list_broken() -> None:
    @server._mcp_server.list_tools()  # pyright: ignore[reportPrivateUsage, reportUntypedFunctionDecorator]
    async def list_tools() -> list[types.Tool]:  # pyright: ignore[reportUnusedFunction]
        return [
            types.Tool(name="good", inputSchema={"type": "object"}),
            types.Tool(name="bad", inputSchema={"type": "object", "properties": {"a": {"type": "strin"}}}),
        ]


if __name__ == "__main__":
    oddity = {"pages": _list_in_pages, "names": _list_odd_names, "broken": _list_broken}.get(ODDITY)
    if oddity is not None:
        oddity()
    if len(sys.argv) > 1:
        server.settings.port = int(sys.argv[1])
    server.run("streamable-http" if len(sys.argv) > 1 else "stdio")
