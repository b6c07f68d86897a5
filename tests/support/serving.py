"""The MCP servers of the tests."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from support.fork_server import start

SERVER = str(Path(__file__).with_name("mcp_server.py"))
LISTING_SERVER = str(Path(__file__).with_name("listing_server.py"))


@asynccontextmanager
async def mcp_over_http() -> AsyncGenerator[str]:
    """:data:`SERVER`, listening over HTTP; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = start([SERVER, str(port)], cwd=Path.cwd(), environment=os.environ, stdout=2, stderr=2)
    try:
        async with asyncio.timeout(30):
            await _listens(port)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        process.wait(30)


async def _listens(port: int) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.05)
        else:
            writer.close()
            await writer.wait_closed()
            return
