"""Declarations of tools, as the sandbox gets them."""

from __future__ import annotations

from typing import Any


def parameter(
    name: str, annotation: str = "Any", *, key: str | None = None, keyword_only: bool = False, **default: Any
) -> dict[str, Any]:
    """A parameter, required unless it has a ``default``, or ``optional`` is true."""
    optional = default.pop("optional", "default" in default)
    return {
        "name": name,
        "key": key or name,
        "annotation": annotation,
        "required": not optional,
        "keyword_only": keyword_only,
        **default,
    }


def tool(
    name: str,
    *parameters: dict[str, Any],
    doc: str = "",
    returns: str | None = None,
    takes_others: bool = False,
) -> dict[str, Any]:
    return {
        "name": name,
        "doc": doc,
        "parameters": list(parameters),
        "returns": returns,
        "takes_others": takes_others,
    }


SEARCH = tool(
    "search",
    parameter("query", "str"),
    parameter("limit", "int", default=10),
    parameter("user_id", "int | None", key="user-id", keyword_only=True, optional=True),
    doc="Search the web.\n\nArgs:\n    query: What for.",
    returns="list[dict[str, Any]]",
)
CREATE = tool("github.create_issue", parameter("title", "str"), doc="Create an issue.")
ECHO = tool("echo", parameter("value"), doc="Return it.")
