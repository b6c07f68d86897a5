"""Tools of MCP servers. Needs the extra ``mcp``."""

from codeact_team.tools.mcp.server import McpServer

__all__ = ["McpServer"]
