"""Where in a piece of source code something stands that could end the block the code is in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

START_TAG = "<execute>"
END_TAG = "</execute>"
TAB_STOP = 4

_MARK = rf"`{{3,}}+|~{{3,}}+|{END_TAG}"
_ANYWHERE = re.compile(_MARK)
# A quoted string ends with its line at the latest, so that a stray apostrophe hides no more than that line.
_CODE = re.compile(
    rf"(?P<mark>{_MARK})|(?P<quote>\"\"\"|''')|(?P<comment>#[^\n]*+)"
    r"|\"(?:[^\"\\\n]|\\[^\n])*+\"?|'(?:[^'\\\n]|\\[^\n])*+'?"
)
_STRING = {
    quote: re.compile(rf"(?P<mark>{_MARK})|\\.|(?P<quote>{quote})", re.DOTALL) for quote in ('"""', "'''")
}
_REST_BLANK = re.compile(r"[ \t\r]*+(?=\n|\Z)")
_COMMENT_LINE = re.compile(r"[ \t]*+(?:#|//)")


class Where(Enum):
    """What a mark stands in."""

    CODE = "code"
    COMMENT = "comment"
    STRING = "string"


class Mark(NamedTuple):
    """A run of backticks or tildes, or an end tag.

    Attributes:
        text: The run or the tag.
        start: Its offset.
        line: Offset of the start of its line.
        indent: Its column, counted from 0, where only blanks precede it on its line; else ``None``.
        last: Whether only blanks follow it on its line.
        odd: Whether an even number of marks precedes it on its line.
        where: What it stands in; always code where the language is not Python.
        comment_line: Whether its line starts as a comment does in most languages.
    """

    text: str
    start: int
    line: int
    indent: int | None
    last: bool
    odd: bool
    where: Where
    comment_line: bool

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.start + len(self.text)


def find_marks(text: str, start: int, *, python: bool) -> Iterator[Mark]:
    """Find the marks from ``start``, an offset that counts as the start of a line, on.

    Reads on only as far as marks are asked for. No code is compiled: hostile source would make that slow or worse.

    Args:
        text: What to search.
        start: Where to begin.
        python: Tell marks in strings and comments of Python code from others. Those in one-line strings are left out.
    """
    found = (
        _python(text, start) if python else ((match, Where.CODE) for match in _ANYWHERE.finditer(text, start))
    )
    line, before, odd = start, start, False
    comment_line = _COMMENT_LINE.match(text, line) is not None
    for match, where in found:
        newline = text.rfind("\n", before, match.start())
        if newline >= 0:
            line, odd = newline + 1, False
            comment_line = _COMMENT_LINE.match(text, line) is not None
        first = newline >= 0 or before == start
        lead = text[line : match.start()] if first else None
        indent = column(lead) if lead is not None and not lead.strip(" \t") else None
        last = _REST_BLANK.match(text, match.end()) is not None
        before, odd = match.end(), not odd
        yield Mark(match[0], match.start(), line, indent, last, odd, where, comment_line)


def column(lead: str) -> int:
    """The column, counted from 0, behind ``lead``, a beginning of a line."""
    return len(lead.expandtabs(TAB_STOP))


def _python(text: str, start: int) -> Iterator[tuple[re.Match[str], Where]]:
    quote: str | None = None
    position = start
    while match := (_CODE if quote is None else _STRING[quote]).search(text, position):
        position = match.end()
        if match["mark"] is not None:
            yield match, Where.CODE if quote is None else Where.STRING
        elif match["quote"] is not None:
            quote = match["quote"] if quote is None else None
        elif quote is None and match["comment"] is not None:
            for mark in _ANYWHERE.finditer(text, match.start(), match.end()):
                yield mark, Where.COMMENT
