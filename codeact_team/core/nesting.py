"""How deeply values of JSON are nested.

Until Python 3.13, ``json`` went a thousand levels deep. Since 3.14 it goes as deep as the stack of the thread allows, which
is more than other functions can follow.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any, cast

MAX_NESTING = 200
"""Levels of nesting, as Pydantic reads them."""


def check_nesting(value: object) -> None:
    """Raise a ``ValueError`` if a value of JSON has more than :data:`MAX_NESTING` levels."""
    level: list[Any] = [value]
    for _ in range(MAX_NESTING + 1):
        level = [part for part in chain.from_iterable(map(_parts, level)) if isinstance(part, _CONTAINERS)]
        if not level:
            return
    raise ValueError("it is nested too deeply")


_CONTAINERS = (list, tuple, dict)


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).values()
    return cast("Iterable[Any]", value) if isinstance(value, _CONTAINERS) else ()
