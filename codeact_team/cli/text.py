"""Text that holds code, told apart for colours."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_FENCE = re.compile(r"[ \t]*(?P<run>`{3,}|~{3,})[ \t]*(?P<label>[\w+#.-]*)")


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
