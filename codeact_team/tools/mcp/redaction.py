"""What may be said of how an MCP server is reached: never its secrets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from urllib.parse import SplitResult, parse_qsl, urlsplit

from autogen_ext.tools.mcp import McpServerParams, StdioServerParams

_MASK = "***"
_MIN_SECRET = 4
_MAX_SEGMENT = 20
_MAX_LABEL = 120


def label_of(params: McpServerParams) -> str:
    """The command or the URL, as far as no secret can be in it."""
    if isinstance(params, StdioServerParams):
        return " ".join([PurePath(params.command).name, *_plain_arguments(params)])[:_MAX_LABEL]
    url = urlsplit(params.url)
    host = url.netloc.rpartition("@")[2]
    return f"{url.scheme}://{host}{'/'.join(_plain_path(url))}"[:_MAX_LABEL]


def redact(text: str, params: McpServerParams) -> str:
    """``text`` without what the parameters say that :func:`label_of` does not."""
    for secret in sorted(set(_secrets(params)), key=len, reverse=True):
        text = text.replace(secret, _MASK)
    return text


def _plain_arguments(params: StdioServerParams) -> list[str]:
    plain: list[str] = []
    for argument in params.args:
        # from the first option on, anything may be the value of one
        if argument.startswith("-") or "=" in argument or "://" in argument:
            break
        plain.append(argument)
    return plain


def _plain_path(url: SplitResult) -> list[str]:
    # some services put the key there
    return [part if len(part) <= _MAX_SEGMENT else _MASK for part in url.path.split("/")]


def _secrets(params: McpServerParams) -> Iterator[str]:
    if isinstance(params, StdioServerParams):
        values = [*(params.env or {}).values(), *params.args[len(_plain_arguments(params)) :]]
        # of `--key=value` the value
        values += [value.partition("=")[2] for value in values]
        values += [part for value in values if "://" in value for part in _secret_parts(value)]
    else:
        values = [*map(str, (params.headers or {}).values()), *_secret_parts(params.url)]
    # of "Bearer token" the token
    words = [word for value in values for word in value.split()]
    return (secret for secret in (*values, *words) if len(secret) >= _MIN_SECRET)


def _secret_parts(text: str) -> list[str]:
    """What a label of this URL leaves out."""
    url = urlsplit(text)
    parts = [url.query, url.fragment, url.username or "", url.password or ""]
    parts += [value for _, value in parse_qsl(url.query)]
    return parts + [part for part in url.path.split("/") if len(part) > _MAX_SEGMENT]
