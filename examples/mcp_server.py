"""A small MCP server for `mcp_tools.py`: the stock of a shop.

python examples/mcp_server.py
"""

from mcp.server.fastmcp import FastMCP

STOCK = {"bolt": 120, "nut": 80, "gear": 3}
server = FastMCP("stock", log_level="WARNING")


@server.tool()
def articles() -> list[str]:
    """The names of all articles."""
    return list(STOCK)


@server.tool()
def count(article: str) -> int:
    """How many pieces of an article there are."""
    return STOCK[article]


@server.tool()
def order(article: str, pieces: int) -> str:
    """Order more pieces of an article."""
    STOCK[article] += pieces
    return f"ordered {pieces} of {article}"


if __name__ == "__main__":
    server.run()
