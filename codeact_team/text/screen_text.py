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
    screen, done = _Screen(), 0
    for found in _CONTROL.finditer(text):
        screen.write(text[done : found.start()])
        done = found.end()
        if found[2] is None:
            screen.control(found[0])
        elif found[2] in ("J", "K"):
            screen.erase(found[2], found[1])
        else:
            screen.move(found[2], found[1])
    screen.write(text[done:])
    return "\n".join(map("".join, screen.lines))


class _Screen:
    """The lines of a terminal that is as high as it needs to be, and its cursor."""

    def __init__(self) -> None:
        self.lines: list[list[str]] = [[]]
        self._row = self._column = 0

    def write(self, text: str) -> None:
        """Overwrite a line from the cursor on."""
        if text:
            line = self.lines[self._row]
            # a cursor beyond an end is not far beyond it, unless somebody wants the blanks to take time
            self._column = min(self._column, len(line) + _MOST_BLANKS)
            line += [" "] * (self._column - len(line))
            line[self._column : self._column + len(text)] = text
            self._column += len(text)

    def control(self, sign: str) -> None:
        """Move the cursor by an end of a line or a backspace; do nothing for other signs."""
        if sign in ("\n", "\r\n"):
            self._row, self._column = self._row + 1, 0
            if self._row == len(self.lines):
                self.lines.append([])
        elif sign == "\r":
            self._column = 0
        elif sign == "\b":
            self._column = max(0, self._column - 1)

    def erase(self, letter: str, parameter: str) -> None:
        """Erase a line, the screen, or what of it is behind the cursor."""
        if letter == "J" and parameter in ("2", "3"):
            self.lines[:] = [[]]
            self._row = 0
            return
        del self.lines[self._row][0 if parameter == "2" else self._column :]
        if letter == "J":
            del self.lines[self._row + 1 :]

    def move(self, letter: str, parameter: str) -> None:
        """Move the cursor to the top, up or down; ignore other sequences, such as those of colours."""
        if letter == "H" and parameter in ("", "1;1"):
            self._row = self._column = 0
        elif letter in ("A", "F"):
            self._row = max(0, self._row - min(_MOST_UP, _number(parameter)))
            self._column = self._column if letter == "A" else 0
        elif letter == "B":
            self._row = min(len(self.lines) - 1, self._row + min(_MOST_UP, _number(parameter)))


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
