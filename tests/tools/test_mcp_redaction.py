"""What is said of how an MCP server is reached."""

from __future__ import annotations

from typing import Any

import pytest
from autogen_ext.tools.mcp import StdioServerParams, StreamableHttpServerParams

from codeact_team.tools.mcp import label_of, redactor_of

SECRET = "sk-0123456789"


@pytest.mark.parametrize(
    ("params", "label"),
    [
        (
            StdioServerParams(command="/usr/bin/npx", args=["@scope/server", "--key", SECRET]),
            "npx @scope/server",
        ),
        (
            StdioServerParams(command="uvx", args=["server", f"postgres://user:{SECRET}@host/db"]),
            "uvx server",
        ),
        (StdioServerParams(command="env", args=[f"KEY={SECRET}", "server"]), "env"),
        (
            StreamableHttpServerParams(url=f"https://user:{SECRET}@host:8/mcp?key={SECRET}#{SECRET}"),
            "https://host:8/mcp",
        ),
        (
            StreamableHttpServerParams(
                url=f"https://host/s/{SECRET * 2}/mcp", headers={"a": f"Bearer {SECRET}"}
            ),
            "https://host/s/***/mcp",
        ),
    ],
)
def test_a_server_is_named_without_what_may_be_secret(params: Any, label: str) -> None:
    assert label_of(params) == label
    assert SECRET not in redactor_of(params).redact_text(f"<{SECRET}> <{SECRET * 2}> <KEY={SECRET}>")
