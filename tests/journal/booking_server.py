"""An MCP server over stdio, whose tools are those of `killed_run.py`."""

from __future__ import annotations

from killed_run import book, note
from mcp.server.fastmcp import FastMCP

server = FastMCP("bookings", log_level="ERROR")
server.tool("Booking", structured_output=False)(book)
server.tool("Noting", structured_output=False)(note)

if __name__ == "__main__":
    server.run("stdio")
