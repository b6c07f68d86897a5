"""Keeps the source of blocks, and lets ``inspect`` find it."""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from sys import getsizeof
from types import CodeType, FunctionType

from codeact_team.session.protocol import MIB
from codeact_team.session.runner.interpreter.user_code import interruptible_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

interruptible_module(__name__)

_MAX_KEPT_BYTES = 16 * MIB

# separate code before 3.12, but gone when it has run
_COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>")


class Sources:
    """Keeps the source of the running block, and of earlier ones that have defined functions or classes.

    Tracebacks, warnings and ``inspect`` read it.
    """

    def __init__(self) -> None:
        self._kept: dict[str, int] = {}
        self._bytes = 0

    def add(self, name: str, code: str) -> None:
        """Keep the source of the block ``name``."""
        # Python starts no line at a form feed or the like
        text = code.replace("\r\n", "\n").replace("\r", "\n") if "\r" in code else code
        linecache.cache[name] = (len(code), None, [f"{line}\n" for line in text.split("\n")], name)

    def settle(self, name: str, codes: Iterable[CodeType]) -> None:
        """Drop the source of a block that has ended, unless some of its code can be called later."""
        if not any(_leaves_code(code) for code in codes):
            linecache.cache.pop(name, None)
            return
        lines = linecache.getlines(name)
        size = getsizeof(lines) + sum(map(getsizeof, lines))
        self._bytes += size - self._kept.pop(name, 0)
        self._kept[name] = size
        while self._bytes > _MAX_KEPT_BYTES:
            oldest = next(iter(self._kept))
            self._bytes -= self._kept.pop(oldest)
            linecache.cache.pop(oldest, None)


def _leaves_code(code: CodeType) -> bool:
    return any(
        constant.co_name not in _COMPREHENSIONS or _leaves_code(constant)
        for constant in code.co_consts
        if isinstance(constant, CodeType)
    )


def find_classes(inspect: Any) -> None:
    """Have the module ``inspect`` find classes that blocks have defined. It finds functions by itself."""
    file_of: Any = inspect.getfile

    def getfile(object: Any) -> str:
        """Work out which file or block an object was defined in."""
        return _block_of(object) or file_of(object)

    inspect.getfile = getfile


def _block_of(value: Any) -> str | None:
    """The block that defines a class: that of its functions, or else the newest that defines one of this name."""
    if not isinstance(value, type) or value.__module__ != "__main__":
        return None
    for function in vars(value).values():
        if isinstance(function, FunctionType) and function.__qualname__.startswith(f"{value.__qualname__}."):
            block = function.__code__.co_filename
            if block in linecache.cache:
                return block
    newest_first = reversed([*linecache.cache])
    return next((block for block in newest_first if _defines(block, value.__name__)), None)


def _defines(block: str, name: str) -> bool:
    for line in linecache.getlines(block):
        words = line.split(None, 1)
        if words[0:1] == ["class"] and words[1:] and words[1].startswith(name):
            # longer names begin with it, too
            if not words[1][: len(name) + 1].isidentifier():
                return True
    return False
