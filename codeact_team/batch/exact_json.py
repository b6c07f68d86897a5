"""JSON whose whole numbers keep all their digits, and which says each thing once."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any


def loads(text: str) -> Any:
    """Read JSON.

    A whole number that a ``float`` would change is an ``int``, also where it is written with a fraction or an exponent.

    Raises:
        ValueError: If it is no JSON, has a key twice in one object, or a number that a ``float`` would make whole or infinite.
        RecursionError: If it is nested too deep.
    """
    return json.loads(
        text, parse_float=_number, parse_constant=_refuse_constant, object_pairs_hook=_without_doubles
    )


def whole(number: float) -> int | float:
    """An ``int`` for a ``float`` that is a whole number, with the digits that JSON has for it: 1e23 is 10**23."""
    return int(Decimal(repr(number))) if number.is_integer() else number


def _number(text: str) -> int | float:
    number = float(text)
    if math.isinf(number) or (number == 0 and text.lower().partition("e")[0].strip("-0.")):
        raise ValueError(f"the number {text[:40]} is out of range")
    if not number.is_integer() or number == 0 or (exact := Decimal(text)) == Decimal(repr(number)):
        return number
    if exact != exact.to_integral_value():
        raise ValueError(f"the number {text[:40]} is nearly whole, and has more digits than are kept")
    return int(exact)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:40]!r} is there twice")
        found[key] = value
    return found
