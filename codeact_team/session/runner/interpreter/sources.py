"""The source of blocks, for tracebacks, warnings and ``inspect``."""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from sys import getsizeof
from types import CodeType

from codeact_team.session.protocol import MIB

MAX_KEPT_BYTES = 16 * MIB

# code of its own before 3.12, but gone when it has run
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")


class Sources:
    """Keeps the source of the block that runs, and of those before it that have left functions or classes behind."""

    def __init__(self) -> None:
        self._kept: dict[str, int] = {}
        self._bytes = 0

    def add(self, name: str, code: str) -> None:
        """Give the block ``name`` its source."""
        # as Python counts lines: not at a form feed or the like
        text = code.replace("\r\n", "\n").replace("\r", "\n") if "\r" in code else code
        linecache.cache[name] = (len(code), None, [f"{line}\n" for line in text.split("\n")], name)

    def settle(self, name: str, codes: Iterable[CodeType]) -> None:
        """Drop the source of the block ``name``, which has ended, unless some of its code can be called later."""
        if not any(_leaves_code(code) for code in codes):
            linecache.cache.pop(name, None)
            return
        lines = linecache.getlines(name)
        size = getsizeof(lines) + sum(map(getsizeof, lines))
        self._bytes += size - self._kept.pop(name, 0)
        self._kept[name] = size
        while self._bytes > MAX_KEPT_BYTES:
            oldest = next(iter(self._kept))
            self._bytes -= self._kept.pop(oldest)
            linecache.cache.pop(oldest, None)


def _leaves_code(code: CodeType) -> bool:
    """Whether ``code`` defines what can be called after it has run."""
    return any(
        constant.co_name not in _COMPREHENSIONS or _leaves_code(constant)
        for constant in code.co_consts
        if isinstance(constant, CodeType)
    )
