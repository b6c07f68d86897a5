"""Values that cost little to show: jsonschema writes each value that does not fit out, whole, into its message."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from pydantic import JsonValue

_MAX_TEXT = 60
_MAX_ITEMS = 3


class _Text(str):
    __slots__ = ()

    def __repr__(self) -> str:
        return repr(str(self[:_MAX_TEXT])) + ("..." if len(self) > _MAX_TEXT else "")


class _Items(list[JsonValue]):
    __slots__ = ()

    def __repr__(self) -> str:
        return f"[{_shown((_short(item) for item in self), len(self))}]"


class _Fields(dict[str, JsonValue]):
    __slots__ = ()

    def __repr__(self) -> str:
        return f"{{{_shown((f'{key!r}: {_short(value)}' for key, value in self.items()), len(self))}}}"


def tamed(value: JsonValue, depth: int) -> JsonValue:
    """The same value, whose ``repr`` is short.

    Raises:
        RecursionError: If it is nested more than ``depth`` deep.
    """
    if isinstance(value, str):
        return _Text(value)
    if not isinstance(value, list | dict):
        return value
    if depth < 0:
        raise RecursionError
    if isinstance(value, list):
        return _Items([tamed(item, depth - 1) for item in value])
    return _Fields({_Text(key): tamed(item, depth - 1) for key, item in value.items()})


def _short(value: JsonValue) -> str:
    if isinstance(value, list | dict) and value:
        return "[...]" if isinstance(value, list) else "{...}"
    return repr(value)


def _shown(parts: Iterable[str], count: int) -> str:
    return ", ".join([*islice(parts, _MAX_ITEMS), *(["..."] if count > _MAX_ITEMS else [])])
