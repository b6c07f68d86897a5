"""The small MCP server of the tests, over HTTP."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

SERVER = str(Path(__file__).with_name("mcp_server.py"))


@asynccontextmanager
async def mcp_over_http() -> AsyncGenerator[str]:
    """A server that listens; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = await asyncio.create_subprocess_exec(sys.executable, SERVER, str(port))
    try:
        async with asyncio.timeout(30):
            await _listens(port)
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        process.kill()
        await process.wait()


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
