"""Text from elsewhere, made fit to be quoted: bounded, and without what is not seen."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import cast

MAX_ERROR = 4000
"""How many characters of an error are passed on."""

_INVISIBLE = frozenset({"Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp"})
_MAX_LEAVES = 3


def clean(text: str, limit: int) -> str:
    """``text`` without control characters and what else leaves no mark, and at most ``limit`` characters of it."""
    # nothing is read that will not be shown, unless most of it is invisible
    text = text[: 4 * limit].replace("\r\n", "\n").replace("\r", "\n")
    if not text.isascii() or not text.isprintable():
        text = "".join(char for char in text if char in "\n\t" or _is_visible(char))
    return cut(text.strip(), limit)


def one_line(text: str, limit: int) -> str:
    """The first paragraph of ``text``, as one line of at most ``limit`` characters."""
    paragraph = clean(text, 4 * limit).partition("\n\n")[0]
    return cut(" ".join(paragraph.split()), limit)


def cut(text: str, limit: int) -> str:
    """The beginning of ``text``, with a sign where there is more."""
    return text if len(text) <= limit else f"{text[: limit - 2].rstrip()} …"


def describe_error(error: BaseException) -> str:
    """What an exception says, without its traceback; of a group, what its members say."""
    said = dict.fromkeys(_say(leaf) for leaf, _ in zip(leaves(error), range(_MAX_LEAVES), strict=False))
    return clean("; ".join(said), MAX_ERROR)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """The exceptions of a group, or ``error`` itself."""
    if isinstance(error, BaseExceptionGroup):
        for member in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from leaves(member)
    else:
        yield error


def _say(error: BaseException) -> str:
    text = str(error)[: 4 * MAX_ERROR]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _is_visible(char: str) -> bool:
    return unicodedata.category(char) not in _INVISIBLE
