"""Keeps credentials out of a journal: a placeholder stands in their place, which only the run itself can turn back."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Collection, Mapping
from urllib.parse import quote, quote_plus

from pydantic import JsonValue

_SHORTEST = 8
"""Characters; less would be found in any text."""

_PIECE = 1 << 20
"""Bytes that are searched at once."""


def _json(value: str) -> str:
    return json.dumps(value)[1:-1]


def _json_unicode(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)[1:-1]


def _repr(value: str | bytes) -> str:
    """As within a text with both sorts of quotes, where one of them is escaped."""
    return repr('"' + value)[2:-1] if isinstance(value, str) else repr(b'"' + value)[3:-1]


def _url(value: str, safe: str = "") -> str:
    return quote(value, safe=safe, errors="surrogateescape")


def _form(value: str) -> str:
    return quote_plus(value, errors="surrogateescape")


def _in_lower_case(value: str) -> str:
    """With the escapes of URLs as some write them."""
    return re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), value)


def _in_upper_case(value: str) -> str:
    """With the escapes of JSON as some write them."""
    return re.sub(r"(?<=\\u)[0-9a-f]{4}", lambda found: found[0].upper(), value)


def _for_pages(value: str) -> str:
    """As JSON that may stand in HTML."""
    return re.sub("[<>&']", lambda found: f"\\u{ord(found[0]):04x}", _json(value))


def _in_base64(value: str, before: int, special: bytes = b"+/") -> str:
    data = bytes(before) + value.encode(errors="surrogateescape")
    whole = base64.b64encode(data, special).decode()
    # the first and the last characters depend on what is around, too
    start = (before * 8 + 5) // 6
    end = len(data) * 8 // 6
    return whole[start:end]


_ENCODINGS: Mapping[str, Callable[[str], str]] = {
    "": str,
    "json": _json,
    "json-unicode": _json_unicode,
    "json-upper": lambda value: _in_upper_case(_json(value)),
    "json-slash": lambda value: _json(value).replace("/", "\\/"),
    "json-page": _for_pages,
    "json-page-upper": lambda value: _in_upper_case(_for_pages(value)),
    "json-json": lambda value: _json(_json(value)),
    "json-json-unicode": lambda value: _json_unicode(_json_unicode(value)),
    "json-json-json": lambda value: _json(_json(_json(value))),
    "repr": _repr,
    "repr-quoted": lambda value: _repr(value).replace("\\'", "'"),
    "repr-bytes": lambda value: _repr(value.encode(errors="surrogateescape")),
    "repr-json": lambda value: _repr(_json(value)),
    "repr-json-unicode": lambda value: _repr(_json_unicode(value)),
    "json-repr": lambda value: _json(_repr(value)),
    "yaml": lambda value: value.replace("'", "''"),
    "url": _url,
    "url-path": lambda value: _url(value, "/"),
    "url-script": lambda value: _url(value, "!'()*"),
    "form": _form,
    "url-lower": lambda value: _in_lower_case(_url(value)),
    "url-path-lower": lambda value: _in_lower_case(_url(value, "/")),
    "url-script-lower": lambda value: _in_lower_case(_url(value, "!'()*")),
    "form-lower": lambda value: _in_lower_case(_form(value)),
    # base64 of what holds the value depends on where in that it stands; these are what is the same for each place
    "base64": lambda value: _in_base64(value, 0),
    "base64-1": lambda value: _in_base64(value, 1),
    "base64-2": lambda value: _in_base64(value, 2),
    "base64-url": lambda value: _in_base64(value, 0, b"-_"),
    "base64-url-1": lambda value: _in_base64(value, 1, b"-_"),
    "base64-url-2": lambda value: _in_base64(value, 2, b"-_"),
}
"""In which spellings a value is found: those of what is written by one part of a run, and read by another."""


class HiddenValues:
    """Values that must not be written, and what stands for them.

    Args:
        values: Each by a name, such as that of the variable of the environment.
        nonce: What makes the placeholders of a run, which nothing that the run reads or writes can know.
        shown: The names whose placeholders are filled; ``None`` for all.
    """

    def __init__(self, values: Mapping[str, str], nonce: str, shown: Collection[str] | None = None) -> None:
        self._placeholders: dict[str, str] = {}
        for name, value in sorted(values.items()):
            if len(value) < _SHORTEST:
                continue
            for encoding, encode in _ENCODINGS.items():
                how = f"/{encoding}" if encoding else ""
                self._placeholders.setdefault(encode(value), f"«{name}{how}#{nonce}»")
        self._values = {
            placeholder: text
            for text, placeholder in self._placeholders.items()
            if shown is None or placeholder[1:].partition("#")[0].partition("/")[0] in shown
        }
        self._as_bytes = [text.encode(errors="surrogateescape") for text in self._placeholders]
        self._shortest = min(map(len, self._placeholders), default=0)
        self._shown = re.compile(rf"«[^«»]*#{re.escape(nonce)}»")

    def are_in(self, data: bytes) -> bool:
        """Whether one of the values is in the bytes of a file. Takes linear time, and lets other threads run meanwhile."""
        return any(_is_in(data, value) for value in self._as_bytes)

    def hide(self, value: JsonValue) -> JsonValue:
        """A value with placeholders. Takes linear time."""
        return _map_texts(value, self._hide) if self._placeholders else value

    def show(self, value: JsonValue) -> JsonValue:
        """The value that was hidden; what is not known any more keeps its placeholder."""
        return _map_texts(
            value, lambda text: self._shown.sub(lambda found: self._values.get(found[0], found[0]), text)
        )

    def _hide(self, text: str) -> str:
        if len(text) < self._shortest:
            return text
        # a regular expression compares with each value at each character; a search skips ahead
        next_places = {value: place for value in self._placeholders if (place := text.find(value)) >= 0}
        if not next_places:
            return text
        parts: list[str] = []
        end = 0
        while next_places:
            # what holds another goes first
            value = min(next_places, key=lambda value: (next_places[value], -len(value)))
            parts += text[end : next_places[value]], self._placeholders[value]
            end = next_places[value] + len(value)
            for passed in [value for value, place in next_places.items() if place < end]:
                if (place := text.find(passed, end)) < 0:
                    del next_places[passed]
                else:
                    next_places[passed] = place
        return "".join([*parts, text[end:]])


def _is_in(data: bytes, value: bytes) -> bool:
    # no other thread runs during one search, so it goes piece by piece
    return any(
        data.find(value, start, start + _PIECE + len(value) - 1) >= 0 for start in range(0, len(data), _PIECE)
    )


def named_by(nonce: str) -> re.Pattern[bytes]:
    """Finds the names in the placeholders of a run, in a file."""
    return re.compile(rf"«([^«»/#]{{1,200}})(?:/[a-z0-9-]{{1,40}})?#{re.escape(nonce)}»".encode())


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
