"""What could end the block that a piece of source code is in, and where: in code, a comment or a string."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from codeact_team.parsing.labels import SHELLS
from codeact_team.parsing.tags import ENDS

TAB_STOP = 4

_DELIMITER = rf"`{{3,}}+|~{{3,}}+|{ENDS}"
_ANYWHERE = re.compile(_DELIMITER)
# A quoted string ends with its line at the latest, so that a stray apostrophe hides no more than that line.
_PYTHON = re.compile(
    rf"(?P<delimiter>{_DELIMITER})|(?P<quote>\"\"\"|''')|(?P<comment>#[^\n]*+)"
    r"|\"(?:[^\"\\\n]|\\[^\n])*+\"?|'(?:[^'\\\n]|\\[^\n])*+'?"
)
# Quotes of a shell count within a line only: an apostrophe too many is a common mistake, and hides no closing fence.
_SHELL = re.compile(
    rf"(?P<delimiter>{_DELIMITER})|(?P<comment>(?<![^\s;&|()])#[^\n]*+)|\\.|'[^'\n]*+'|\"(?:[^\"\\\n]|\\[^\n])*+\""
    r"|\(\((?:[^)\n]|\)(?!\)))*+|(?<!<)<<-?[ \t]*['\"\\]?(?P<heredoc>[A-Za-z_][\w.-]{0,60}+)"
)
_STRING_REST = {
    quote * 3: re.compile(rf"(?:[^\\{quote}]++|\\.|{quote}(?!{quote}{quote}))*+{quote * 3}", re.DOTALL)
    for quote in "\"'"
}
_REST_BLANK = re.compile(r"[ \t\r]*+(?=\n|\Z)")
_COMMENT_LINE = re.compile(r"[ \t]*+(?:#|//)")
_COMMENT = re.compile(r"(?:^|(?<=[ \t]))(?:#|//)", re.MULTILINE)


class Where(Enum):
    """What a delimiter stands in."""

    CODE = "code"
    COMMENT = "comment"
    STRING = "string"
    """One of several lines, or a here-document."""
    ENDLESS = "endless"
    """A string that never ends."""


class Delimiter(NamedTuple):
    """A run of backticks or tildes, or an end tag: it may end a block of code."""

    text: str
    start: int
    line: int
    """Offset of the start of its line."""
    indent: int | None
    """Its column, counted from 0, where only blanks precede it on its line."""
    last: bool
    """Whether only blanks follow it on its line."""
    odd: bool
    """Whether an even number of delimiters precedes it on its line."""
    where: Where

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def find_delimiters(text: str, start: int, language: str | None = None) -> Iterator[Delimiter]:
    """Find the delimiters from ``start`` on, which counts as the start of a line, reading only as far as they are asked for.

    In Python and shells, those in strings of several lines, such as here-documents, are told from others, and those in
    strings of one line are left out. Of other languages only the usual comments are known. No code is compiled: hostile
    source would make that slow or worse.
    """
    if language == "python":
        found = _python(text, start)
    elif language in SHELLS:
        found = _shell(text, start)
    else:
        found = _plain(text, start)
    line, before, odd = start, start, False
    for match, where in found:
        newline = text.rfind("\n", before, match.start())
        if newline >= 0:
            line, odd = newline + 1, False
        first = newline >= 0 or before == start
        lead = text[line : match.start()] if first else None
        indent = column(lead) if lead is not None and not lead.strip(" \t") else None
        last = _REST_BLANK.match(text, match.end()) is not None
        before, odd = match.end(), not odd
        yield Delimiter(match[0], match.start(), line, indent, last, odd, where)


def column(lead: str) -> int:
    """The column, counted from 0, that follows ``lead``, the beginning of a line."""
    return len(lead.expandtabs(TAB_STOP))


def line_end(text: str, position: int) -> int:
    """The offset of the line feed that ends the line, or of the end of the text."""
    end = text.find("\n", position)
    return len(text) if end < 0 else end


def is_comment(text: str, line: int) -> bool:
    """Whether the line that starts at that offset starts as a comment does in most languages."""
    return _COMMENT_LINE.match(text, line) is not None


def _plain(text: str, start: int) -> Iterator[tuple[re.Match[str], Where]]:
    before, in_comment = start, False
    for match in _ANYWHERE.finditer(text, start):
        newline = text.rfind("\n", before, match.start())
        if newline >= 0:
            before, in_comment = newline + 1, False
        in_comment = in_comment or _COMMENT.search(text, before, match.start()) is not None
        before = match.end()
        yield match, Where.COMMENT if in_comment else Where.CODE


def _python(text: str, start: int) -> Iterator[tuple[re.Match[str], Where]]:
    position = start
    while match := _PYTHON.search(text, position):
        position = match.end()
        if match["delimiter"] is not None:
            yield match, Where.CODE
        elif match["comment"] is not None:
            yield from _within(text, match.start(), position, Where.COMMENT)
        elif match["quote"] is not None:
            rest = _STRING_REST[match["quote"]].match(text, position)
            begin, position = position, rest.end() if rest else len(text)
            yield from _within(text, begin, position, Where.STRING if rest else Where.ENDLESS)


def _shell(text: str, start: int) -> Iterator[tuple[re.Match[str], Where]]:
    heredocs: list[str] = []
    position, line_end = start, len(text)
    while True:
        match = _SHELL.search(text, position, line_end)
        if match is None:
            if not heredocs:
                return
            position, ends = _here_documents_end(text, line_end, heredocs)
            yield from _within(text, line_end, position, Where.STRING if ends else Where.ENDLESS)
            heredocs, line_end = [], len(text)
            continue
        position = match.end()
        if match["delimiter"] is not None:
            yield match, Where.CODE
        elif match["comment"] is not None:
            yield from _within(text, match.start(), position, Where.COMMENT)
        elif match["heredoc"] is not None:
            heredocs.append(match["heredoc"])
            if len(heredocs) == 1 and (newline := text.find("\n", position)) >= 0:
                line_end = newline


def _here_documents_end(text: str, position: int, words: list[str]) -> tuple[int, bool]:
    """The offset behind the here-documents that begin on the line that ends at ``position``, and if all of them end."""
    line = ""
    for word in words:
        line = ""
        while line != word and position < len(text):
            end = line_end(text, position + 1)
            line, position = text[position:end].strip(), end
    return position, line == words[-1]


def _within(text: str, start: int, end: int, where: Where) -> Iterator[tuple[re.Match[str], Where]]:
    return ((match, where) for match in _ANYWHERE.finditer(text, start, end))
