"""Make foreign text fit to be quoted: bounded, and with nothing unseen in it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from codeact_team.visibility import all_visible, cut

MAX_ERROR = 4000
"""How many characters of an error are passed on."""

_MAX_LEAVES = 3


def clean(text: str, limit: int) -> str:
    """Return at most ``limit`` characters of ``text``, all of them visible."""
    # nothing is read that will not be shown
    return cut(all_visible(text[: limit + 1]).strip(), limit)


def one_line(text: str, limit: int) -> str:
    """Return the first paragraph of ``text`` as one line of at most ``limit`` characters."""
    paragraph = clean(text, 4 * limit).partition("\n\n")[0]
    return cut(" ".join(paragraph.split()), limit)


def describe_error(error: BaseException) -> str:
    """Say what an exception says, without its traceback; of a group, what its members say."""
    said = dict.fromkeys(_say(leaf) for leaf, _ in zip(leaves(error), range(_MAX_LEAVES), strict=False))
    return clean("; ".join(said), MAX_ERROR)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions of a group, or ``error`` itself."""
    if isinstance(error, BaseExceptionGroup):
        for member in cast("BaseExceptionGroup[BaseException]", error).exceptions:
            yield from leaves(member)
    else:
        yield error


def _say(error: BaseException) -> str:
    text = str(error)[: 4 * MAX_ERROR]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
