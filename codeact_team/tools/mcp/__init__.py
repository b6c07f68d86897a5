"""Tools of MCP servers. Needs the extra ``mcp``."""
