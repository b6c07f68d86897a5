"""Keeps credentials out of a journal: a placeholder stands in their place, which only the run itself can turn back."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from urllib.parse import quote, quote_plus

from pydantic import JsonValue

_SHORTEST = 8
"""Characters; less would be found in any text."""

_ENCODINGS: Mapping[str, Callable[[str], str]] = {
    "": str,
    "json": lambda value: json.dumps(value)[1:-1],
    "json-unicode": lambda value: json.dumps(value, ensure_ascii=False)[1:-1],
    "url": lambda value: quote(value, safe=""),
    "url-path": quote,
    "form": quote_plus,
    # base64 of what holds the value depends on where in that it stands; these are what is the same for each place
    "base64": lambda value: _in_base64(value, 0),
    "base64-1": lambda value: _in_base64(value, 1),
    "base64-2": lambda value: _in_base64(value, 2),
}


def _in_base64(value: str, before: int) -> str:
    data = bytes(before) + value.encode(errors="surrogateescape")
    whole = base64.b64encode(data).decode()
    # the first and the last characters depend on what is around, too
    start = (before * 8 + 5) // 6
    end = len(data) * 8 // 6
    return whole[start:end]


class HiddenValues:
    """Values that must not be written, and what stands for them.

    Args:
        values: Each by a name, such as that of the variable of the environment.
        nonce: What makes the placeholders of a run, which nothing that the run reads or writes can know.
    """

    def __init__(self, values: Mapping[str, str], nonce: str) -> None:
        self._placeholders: dict[str, str] = {}
        for name, value in sorted(values.items()):
            if len(value) < _SHORTEST:
                continue
            for encoding, encode in _ENCODINGS.items():
                how = f"/{encoding}" if encoding else ""
                self._placeholders.setdefault(encode(value), f"«{name}{how}#{nonce}»")
        self._values = {placeholder: text for text, placeholder in self._placeholders.items()}
        # what holds another goes first
        ordered = sorted(self._placeholders, key=len, reverse=True)
        self._hidden = re.compile("|".join(map(re.escape, ordered))) if ordered else None
        self._shown = re.compile(rf"«[^«»]*#{re.escape(nonce)}»")

    def are_in(self, data: bytes) -> bool:
        """Whether one of the values is in the bytes of a file."""
        pattern = self._hidden
        # what is no text stays what it is in between
        return pattern is not None and pattern.search(data.decode(errors="surrogateescape")) is not None

    def hide(self, value: JsonValue) -> JsonValue:
        """A value with placeholders."""
        pattern = self._hidden
        if pattern is None:
            return value
        return _map_texts(value, lambda text: pattern.sub(lambda found: self._placeholders[found[0]], text))

    def show(self, value: JsonValue) -> JsonValue:
        """The value that was hidden; what is not known any more keeps its placeholder."""
        return _map_texts(
            value, lambda text: self._shown.sub(lambda found: self._values.get(found[0], found[0]), text)
        )


def _map_texts(value: JsonValue, change: Callable[[str], str]) -> JsonValue:
    match value:
        case str():
            return change(value)
        case list():
            return [_map_texts(item, change) for item in value]
        case dict():
            return {change(key): _map_texts(item, change) for key, item in value.items()}
        case _:
            return value
