"""Measures the nesting of JSON values.

Until Python 3.13, ``json`` went a thousand levels deep. Since 3.14 it goes as deep as the stack of the thread allows, which
is more than other functions can follow.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import chain
from typing import Any, cast

MAX_NESTING = 200
"""Levels of nesting, as Pydantic reads them."""
_TOO_DEEP = "it is nested too deeply"


def parse_json(text: str | bytes, **hooks: Any) -> Any:
    """Parse JSON, with the hooks of :func:`json.loads`. Raises a ``ValueError`` also if it is nested too deeply."""
    try:
        value = json.loads(text, **hooks)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    # to count takes a small part of the time of a walk
    opened = (
        text.count("[") + text.count("{") if isinstance(text, str) else text.count(b"[") + text.count(b"{")
    )
    if opened > MAX_NESTING:
        check_nesting(value)
    return value


def check_nesting(value: object) -> None:
    """Raise a ``ValueError`` if a value of JSON has more than :data:`MAX_NESTING` levels."""
    level: list[Any] = [value]
    for _ in range(MAX_NESTING + 1):
        level = [part for part in chain.from_iterable(map(_parts, level)) if isinstance(part, _CONTAINERS)]
        if not level:
            return
    raise ValueError(_TOO_DEEP)


_CONTAINERS = (list, tuple, dict)


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return cast("dict[str, Any]", value).values()
    return cast("Iterable[Any]", value) if isinstance(value, _CONTAINERS) else ()
