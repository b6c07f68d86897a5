"""A small MCP server: `python mcp_server.py` over stdio, `python mcp_server.py PORT` over HTTP on 127.0.0.1.

Calls wait for events that have names, so that many tests can use one server.
"""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from collections import defaultdict
from enum import Enum
from typing import Annotated, Any

from mcp import types
from mcp.server.fastmcp import Context, FastMCP
from pydantic import BaseModel, Field

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

server = FastMCP("order-desk", host="127.0.0.1", log_level="ERROR")


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


_meeting: dict[str, set[int]] = defaultdict(set)
_events: dict[str, asyncio.Event] = defaultdict(asyncio.Event)


@server.tool()
async def meet(place: str, number: int, others: int) -> int:
    """Wait until so many calls are under way at once."""
    _meeting[place].add(number)
    if len(_meeting[place]) == others:
        _events[place].set()
    await _events[place].wait()
    return number


@server.tool()
async def wait_for_ever(who: str) -> str:
    """Wait."""
    _events[f"{who} waits"].set()
    try:
        await asyncio.Event().wait()
    finally:
        _events[f"{who} has ended"].set()
    return ""


@server.tool()
async def when(event: str) -> str:
    """Return when something has happened."""
    await _events[event].wait()
    return ""


@server.tool()
def process_id() -> int:
    """The server's process."""
    return os.getpid()


@server.tool()
def die() -> str:
    """End the server."""
    os._exit(3)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.settings.port = int(sys.argv[1])
    server.run("streamable-http" if len(sys.argv) > 1 else "stdio")
