"""Hostile text, made fit for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))

_VISIBLE: dict[int, str] = {
    # the pictures that Unicode has for them
    **{code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\t\n"},
    0x7F: "\N{SYMBOL FOR DELETE}",
    **dict.fromkeys(range(0x80, 0xA0), _REPLACEMENT),
    # what reorders text, so that it reads as something else than it is
    **dict.fromkeys(_DIRECTIONS, _REPLACEMENT),
    # halves of a pair, which no stream can encode
    **dict.fromkeys(range(0xD800, 0xE000), _REPLACEMENT),
}

_FENCE = re.compile(r"[ \t]*(?P<run>`{3,}|~{3,})[ \t]*(?P<label>[\w+#.-]*)")


def visible(text: str) -> str:
    """``text`` without anything that steers a terminal: such characters are shown instead of sent.

    A lone carriage return, with which a line overwrites itself, becomes a new line.
    """
    return text.replace("\r\n", "\n").replace("\r", "\n").translate(_VISIBLE)


class Segment(NamedTuple):
    """A stretch of whole lines.

    Attributes:
        text: The lines, as they are.
        language: The label of the fence that they stand behind; ``None`` for prose and for the fences themselves.
    """

    text: str
    language: str | None


def segments(text: str) -> Iterator[Segment]:
    """Tell prose from fenced code, for colours only: nothing is left out, and what runs is decided elsewhere."""
    lines: list[str] = []
    fence, language = "", None
    for line in text.splitlines(keepends=True):
        found = _FENCE.match(line)
        if found is None or (fence and not found["run"].startswith(fence)):
            lines.append(line)
            continue
        if fence:
            yield Segment("".join(lines), language)
            lines, fence, language = [line], "", None
        else:
            yield Segment("".join([*lines, line]), None)
            lines, fence, language = [], found["run"], found["label"]
    yield Segment("".join(lines), language)
