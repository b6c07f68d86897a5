"""The Markdown containers that code may stand in: lists and block quotes."""

from __future__ import annotations

import re
from bisect import bisect_right

from codeact_team.parsing.delimiters import TAB_STOP, column, line_end

MAX_INDENT = 3
"""How many columns anything may be indented in its container: what is indented more is code, that is, quoted."""

PREFIX = re.compile(r"(?:[ \t>]|(?:[-+*]|\d{1,9}[.)])(?=[ \t]))*+")
"""What stands before the content of a line: indentation, list markers, block quote markers."""

_ITEM = re.compile(r"(?:[-+*]|\d{1,9}[.)])(?= |\Z)")
_CODE_IN_ITEM = re.compile(r"(?:[-+*]|[.)]) {5}")
_FENCE = ("```", "~~~")


class Lists:
    """Which list items are open. Looks at the text only when asked: most messages never need it."""

    def __init__(self) -> None:
        self._unread: list[str] = []
        self._columns: list[int] = []
        self._after_blank = True

    def add(self, text: str) -> None:
        """Append whole lines outside of fences."""
        if text:
            self._unread.append(text.removesuffix("\n"))

    def is_indented_code(self, prefix: str) -> bool:
        """Whether the next line, with this prefix, is code by its indentation, and therefore only quoted."""
        if not prefix:
            return False
        expanded = prefix.expandtabs(TAB_STOP)
        if _CODE_IN_ITEM.search(expanded):
            return True
        indent = len(expanded) - len(expanded.lstrip(" "))
        return indent > MAX_INDENT and indent - self._content_column(indent) > MAX_INDENT

    def _content_column(self, indent: int) -> int:
        for text in self._unread:
            for line in text.split("\n"):
                self._read(line.expandtabs(TAB_STOP))
        self._unread.clear()
        enclosing = bisect_right(self._columns, indent)
        return self._columns[enclosing - 1] if enclosing else 0

    def _read(self, line: str) -> None:
        content = line.lstrip(" ")
        if not content.strip():
            self._after_blank = True
            return
        indent = len(line) - len(content)
        is_item = _ITEM.match(content) is not None
        # any other line may be a lazy continuation of the paragraph above, which leaves the list open
        if is_item or self._after_blank or content.startswith(_FENCE):
            while self._columns and self._columns[-1] > indent:
                self._columns.pop()
        self._after_blank = False
        if is_item and indent - (self._columns[-1] if self._columns else 0) <= MAX_INDENT:
            self._open_items(line, indent)

    def _open_items(self, line: str, position: int) -> None:
        while item := _ITEM.match(line, position):
            position = item.end()
            while position < len(line) and line[position] == " ":
                position += 1
            blanks = position - item.end()
            if position == len(line) or blanks > MAX_INDENT + 1:
                self._columns.append(item.end() + 1)
                return
            self._columns.append(position)


def unquote(text: str, start: int, candidate: int, prefix: str) -> tuple[str, int]:
    """Take the block quote around the line at ``candidate`` out of its quotation marks, as many as the line's prefix has.

    Return its text, from ``start`` at the earliest, as a document of its own, and the offset behind it.
    """
    marks = re.compile(rf"(?:[ \t]*+> ?+){{{prefix.count('>')}}}")
    before: list[str] = []
    for line in reversed(text[start:candidate].split("\n")[:-1]):
        if (match := marks.match(line)) is None:
            break
        before.append(line[match.end() :])
    end = line_end(text, candidate)
    lines = [*reversed(before), text[candidate + prefix.rindex(">") + 1 : end].removeprefix(" ")]
    while end < len(text) and (match := marks.match(text, end + 1)):
        end = line_end(text, match.end())
        lines.append(text[match.end() : end])
    return "\n".join(lines) + text[end : end + 1], min(end + 1, len(text))


def dedent(code: str, width: int) -> str:
    """Take the indentation of a fence, ``width``, off its code, as far as the code was indented along with it."""
    first = code[: len(code) - len(code.lstrip())].rpartition("\n")[2]
    width = min(width, column(first))
    return "\n".join(_outdent(line, width) for line in code.split("\n")) if width else code


def _outdent(line: str, width: int) -> str:
    reached = position = 0
    while reached < width and position < len(line) and line[position] in " \t":
        reached += TAB_STOP - reached % TAB_STOP if line[position] == "\t" else 1
        position += 1
    return " " * (reached - width) + line[position:]
