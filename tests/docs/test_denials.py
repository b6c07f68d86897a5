"""The guide explains denials in the words that the program says."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator, Sequence

import pytest
from documents import DOCS, ROOT
from markdown_it import MarkdownIt

_VARIES = re.compile(r"""…|'[^']*'|"[^"]*"|\[[^]]*\]|\bU\+\w+|\brule \d+|\d[\d,]*|[():;]""")
"""Names and numbers in a message, and where parts of one are put together."""


def _quoted() -> Iterator[str]:
    """What stands in the first columns of the tables of the section."""
    text = (DOCS / "guides" / "approval.md").read_text().partition("\n## Why was this denied?\n")[2]
    is_first = False
    for token in MarkdownIt().enable("table").parse(text):
        if token.type in ("tr_open", "td_close"):
            is_first = token.type == "tr_open"
        elif is_first and token.type == "inline":
            yield from (child.content for child in token.children or () if child.type == "code_inline")


@functools.cache
def _sources() -> Sequence[str]:
    return [file.read_text() for file in (ROOT / "codeact_team").rglob("*.py")]


@functools.cache
def _texts(source: str) -> str:
    """All texts in a module."""
    nodes = ast.walk(ast.parse(source))
    texts = (str(node.value) for node in nodes if isinstance(node, ast.Constant))
    return "\n".join(texts).replace("`", "")


def _is_said(part: str) -> bool:
    words = part.split()
    # modules that have all the words come first: to parse a module takes longer than to look for them
    sources = sorted(_sources(), key=lambda source: not all(word in source for word in words))
    return any(part in _texts(source) for source in sources)


@pytest.mark.parametrize("quote", [*_quoted()])
def test_the_program_says_what_the_guide_explains(quote: str) -> None:
    for part in map(str.strip, _VARIES.split(quote)):
        assert _is_said(part), f"{part!r} of {quote!r}"
