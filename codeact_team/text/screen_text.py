"""Output as a terminal would show it in the end: bars of progress by their last state, and repeated lines once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

_CONTROL = re.compile(
    r"\r\n|[\n\r\b]|\x1b\[([0-9;?]*)([ -/]*[@-~])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[@-Z\\-_]?"
)
"""Characters that move the cursor or style text: line ends, backspaces, and the sequences of terminals."""
_MOST_UP = 100
"""Lines: bars that stand below each other need no more."""
_MOST_BLANKS = 200
_LONGEST_GROUP = 4
"""Lines that may be repeated together: a warning has two."""
_LEAST_REPEATED = 6
"""Lines of repetition that are worth a line that tells of them."""


def settled(text: str) -> str:
    """``text`` after all that it overwrites is overwritten, without colours. Takes time in proportion to its length."""
    if not ("\r" in text or "\x1b" in text or "\b" in text):
        return text
    lines: list[list[str]] = [[]]
    row = column = done = 0
    for found in _CONTROL.finditer(text):
        column = _write(lines[row], column, text[done : found.start()])
        done = found.end()
        control = found[0]
        if control in ("\n", "\r\n"):
            row, column = row + 1, 0
            if row == len(lines):
                lines.append([])
        elif control == "\r":
            column = 0
        elif control == "\b":
            column = max(0, column - 1)
        elif found[2] == "K":
            # to the end of the line, or all of it
            del lines[row][0 if found[1] == "2" else column :]
        elif found[2] in ("A", "F"):
            row = max(0, row - min(_MOST_UP, _number(found[1])))
            column = column if found[2] == "A" else 0
        elif found[2] == "B":
            row = min(len(lines) - 1, row + min(_MOST_UP, _number(found[1])))
    _write(lines[row], column, text[done:])
    return "\n".join(map("".join, lines))


def _write(line: list[str], column: int, text: str) -> int:
    """Overwrite a line from a column on. Returns where the cursor is then."""
    if text:
        # a cursor beyond an end is not far beyond it, unless somebody wants the blanks to take time
        column = min(column, len(line) + _MOST_BLANKS)
        line += [" "] * (column - len(line))
        line[column : column + len(text)] = text
    return column + len(text)


def _number(parameter: str) -> int:
    return int(parameter) if parameter.isdecimal() and len(parameter) < 9 else 1


def condensed(text: str) -> str:
    """``text`` with lines that follow each other and are equal, alone or in small groups, once and counted."""
    return "\n".join(_told(text.split("\n")))


def _told(lines: Sequence[str]) -> Iterator[str]:
    at = 0
    while at < len(lines):
        size, times = _repetition(lines, at)
        yield from lines[at : at + size]
        if times:
            what = "the line above" if size == 1 else f"the {size} lines above"
            yield f"[... {what} came {times:,} more times ...]"
        at += size * (1 + times)


def _repetition(lines: Sequence[str], at: int) -> tuple[int, int]:
    """Return the size of the group of lines that repeats from here on, and its repetitions; ``1, 0`` for too few."""
    first = lines[at]
    for size in range(1, min(_LONGEST_GROUP, len(lines) - 1 - at) + 1):
        # blank lines cost little, and part what they stand between
        if not first or lines[at + size] != first:
            continue
        group, times = lines[at : at + size], 0
        while lines[at + size * (times + 1) : at + size * (times + 2)] == group:
            times += 1
        if size * times >= _LEAST_REPEATED:
            return size, times
    return 1, 0
