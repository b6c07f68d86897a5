"""Finds where the code behind an opening fence ends."""

from __future__ import annotations

import re
from typing import NamedTuple

from codeact_team.parsing.containers import MAX_INDENT, PREFIX
from codeact_team.parsing.delimiters import Delimiter, Where, find_delimiters, is_comment, line_end
from codeact_team.parsing.labels import SHELLS

# A single word right behind the fence; prose begins with a blank or goes on behind the word.
_LABEL = re.compile(r"[A-Za-z][^\s`]*+[ \t]*+(?=\n|\Z)")


class Fence(NamedTuple):
    """An opening fence: its run of backticks or tildes, and its column."""

    run: str
    indent: int

    def fits(self, delimiter: Delimiter) -> bool:
        """Whether the delimiter has the right character, often enough, to close this fence."""
        return delimiter.text.startswith(self.run)

    def is_closed_by(self, delimiter: Delimiter) -> bool:
        """Whether the delimiter is a closing fence by CommonMark, read leniently: a list item need not end first."""
        return (
            delimiter.last and delimiter.indent is not None and delimiter.indent <= self.indent + MAX_INDENT
        )


class End(NamedTuple):
    """The end of the code behind a fence."""

    code: int
    """Offset of the end of the code."""
    resume: int
    """Offset of what follows the closing fence."""
    certain: bool = False
    """Whether that is a closing fence, on a line of its own or glued to the code, and not just mentioned."""
    closed: bool = True
    """Whether it is known where the code ends."""
    read_on: bool = False
    """Whether text behind this end had to be read to find it."""


def first_end(text: str, body: int, fence: Fence, *, may_be_glued: bool) -> End:
    """Find the first closing fence.

    Where it may not be glued to the code, as in what is not run, nothing quoted is taken for code. Where it may, this is
    the end of code as far as it can be told without reading on behind it.
    """
    for delimiter in find_delimiters(text, body):
        if fence.fits(delimiter) and fence.is_closed_by(delimiter):
            return _own_line(text, delimiter)
        if may_be_glued and fence.fits(delimiter) and _is_glued(text, delimiter):
            return _glued(text, delimiter)
    return _unclosed(text)


def code_end(text: str, body: int, fence: Fence, language: str) -> End:
    """Find the end of code: a closing line where there is one, outside of strings and comments where possible."""
    reader = _Reader(text, fence, language)
    for delimiter in find_delimiters(text, body, language):
        if (end := reader.read(delimiter)) is not None:
            return end
    return reader.doubtful_end()


class _Reader:
    """Looks for the end of code, delimiter by delimiter, and keeps a candidate in case that nothing better follows."""

    def __init__(self, text: str, fence: Fence, language: str) -> None:
        self._text = text
        self._fence = fence
        self._is_python = language == "python"
        self._is_known = self._is_python or language in SHELLS
        self._line: Delimiter | None = None
        self._glued: Delimiter | None = None

    def read(self, delimiter: Delimiter) -> End | None:
        """The end, if the delimiter is it for certain."""
        on_own_line = self._fence.is_closed_by(delimiter)
        if not self._fence.fits(delimiter):
            # known code holds no line of backticks, so this one was meant to close a longer fence
            if (
                self._is_known
                and on_own_line
                and delimiter.where is Where.CODE
                and delimiter.text[0] == self._fence.run[0]
            ):
                self._line = self._line or delimiter
            return None
        if delimiter.where is not Where.CODE:
            return self._read_inside(delimiter, on_own_line=on_own_line)
        if on_own_line or (self._is_python and delimiter.last and delimiter.indent is not None):
            return _own_line(self._text, delimiter)
        return self._read_backticks(delimiter) if delimiter.text[0] == "`" else None

    def _read_inside(self, delimiter: Delimiter, *, on_own_line: bool) -> None:
        """Read a delimiter in a string or a comment; what stands in one that ends, or in a line of comment, is no end."""
        if on_own_line and delimiter.where is Where.ENDLESS:
            self._line = self._line or delimiter
        elif (
            delimiter.where is Where.COMMENT and delimiter.last and not is_comment(self._text, delimiter.line)
        ):
            self._glued = self._glued or delimiter

    def _read_backticks(self, delimiter: Delimiter) -> End | None:
        """Read backticks beside something else; in Python they are never valid, in a shell not where a line begins."""
        if self._is_python or (self._is_known and delimiter.indent is not None):
            opens_another = delimiter.indent is not None and _LABEL.match(self._text, delimiter.end)
            return End(delimiter.line, delimiter.line) if opens_another else _glued(self._text, delimiter)
        if _is_glued(self._text, delimiter):
            return _glued(self._text, delimiter)
        if (
            self._is_known
            and delimiter.odd
            and _glued(self._text, delimiter).certain
            and self._text[delimiter.end].isspace()
        ):
            self._glued = self._glued or delimiter
        return None

    def doubtful_end(self) -> End:
        """The best candidate. Where a here-document never ends, nobody knows where the code does."""
        if self._line is not None:
            known = self._is_python or self._line.where is Where.CODE
            end = _own_line(self._text, self._line)._replace(closed=known)
        elif self._glued is not None:
            end = _glued(self._text, self._glued)._replace(closed=self._glued.where is Where.CODE)
        else:
            return _unclosed(self._text)
        return end._replace(read_on=True)


def _is_glued(text: str, delimiter: Delimiter) -> bool:
    if delimiter.text[0] != "`" or delimiter.where is not Where.CODE:
        return False
    if not delimiter.last or delimiter.indent is not None or not delimiter.odd:
        return False
    # a fence in a quote or a list, within the code, is glued to nothing
    return PREFIX.fullmatch(text, delimiter.line, delimiter.start) is None


def _own_line(text: str, delimiter: Delimiter) -> End:
    return End(delimiter.line, min(line_end(text, delimiter.end) + 1, len(text)), certain=True)


def _glued(text: str, delimiter: Delimiter) -> End:
    certain = delimiter.indent is not None or not text[delimiter.start - 1].isspace()
    return End(delimiter.start, delimiter.end, certain=certain)


def _unclosed(text: str) -> End:
    return End(len(text), len(text), closed=False)
