"""Where the code behind an opening fence ends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from codeact_team.parsing.containers import MAX_INDENT, PREFIX
from codeact_team.parsing.marks import Mark, Where, find_marks

# A single word right behind the fence; prose begins with a blank or goes on behind the word.
_LABEL = re.compile(r"[A-Za-z][^\s`]*+[ \t]*+(?=\n|\Z)")


class Fence(NamedTuple):
    """An opening fence: its run of backticks or tildes, and its column."""

    run: str
    indent: int

    def fits(self, mark: Mark) -> bool:
        """Whether the mark has the right character, often enough, to close this fence."""
        return mark.text.startswith(self.run)

    def is_closed_by(self, mark: Mark) -> bool:
        """Whether the mark is a closing fence by CommonMark, read leniently: a list item need not end first."""
        return mark.last and mark.indent is not None and mark.indent <= self.indent + MAX_INDENT


class End(NamedTuple):
    """The end of the code behind a fence.

    Attributes:
        code: Offset of the end of the code.
        resume: Offset of what follows the closing fence.
        proper: Whether there is a closing fence, on a line of its own.
        closed: Whether anything closes the fence before the text ends.
        vain: Whether text behind this end had to be read to find it.
    """

    code: int
    resume: int
    proper: bool = False
    closed: bool = True
    vain: bool = False


def quoted_end(text: str, body: int, fence: Fence) -> End:
    """The end of what is not to be run: strictly where the closing fence is, so that nothing quoted comes free."""
    for mark in _fitting(text, body, fence, python=False):
        if fence.is_closed_by(mark):
            return _proper(text, mark)
    return _unclosed(text)


def code_end(text: str, body: int, fence: Fence) -> End:
    """The end of code in any language: at a closing fence, or at one that is glued to the last line."""
    for mark in _fitting(text, body, fence, python=False):
        if fence.is_closed_by(mark):
            return _proper(text, mark)
        if mark.text[0] == "`" and _is_glued(text, mark):
            return End(mark.start, mark.end)
    return _unclosed(text)


def python_end(text: str, body: int, fence: Fence) -> End:
    """The end of Python code: at the first mark outside strings and comments, where backticks are never valid."""
    inside: Mark | None = None
    for mark in _fitting(text, body, fence, python=True):
        if mark.where is not Where.CODE:
            if fence.is_closed_by(mark) or (mark.where is Where.COMMENT and mark.last):
                inside = inside or mark
        elif mark.last and mark.indent is not None:
            return _proper(text, mark)
        elif mark.text[0] == "`":
            opens_another = mark.indent is not None and _LABEL.match(text, mark.end)
            return End(mark.line, mark.line) if opens_another else End(mark.start, mark.end)
    if inside is None:
        return _unclosed(text)
    # the string or comment never ends properly: it is the code that is broken, not the fence
    end = _proper(text, inside) if fence.is_closed_by(inside) else End(inside.start, inside.end)
    return end._replace(vain=True)


def _is_glued(text: str, mark: Mark) -> bool:
    if not mark.last or mark.indent is not None or not mark.odd or mark.comment_line:
        return False
    # a fence in a quote or a list, within the code, is glued to nothing
    return PREFIX.fullmatch(text, mark.line, mark.start) is None


def _fitting(text: str, body: int, fence: Fence, *, python: bool) -> Iterator[Mark]:
    return (mark for mark in find_marks(text, body, python=python) if fence.fits(mark))


def _proper(text: str, mark: Mark) -> End:
    newline = text.find("\n", mark.end)
    return End(mark.line, len(text) if newline < 0 else newline + 1, proper=True)


def _unclosed(text: str) -> End:
    return End(len(text), len(text), closed=False)
