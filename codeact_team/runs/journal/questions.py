"""What is asked of the world, in a form that is known again, without credentials."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from hashlib import sha256
from itertools import product
from typing import Any, Literal
from urllib.parse import quote, quote_plus

from pydantic import JsonValue

from codeact_team.core.aio import to_the_end
from codeact_team.core.effects import Effect
from codeact_team.core.places import place_of
from codeact_team.errors import RecordedError
from codeact_team.runs.journal.blobs import Blobs, is_light

_SHORTEST = 8
"""Characters; less would be found in any text."""

_AS_THEY_ARE = re.compile("[A-Za-z0-9]+")
_PIECE = 1 << 20
"""Bytes that are searched at once."""


_Encode = Callable[[str], str]


def _json(value: str) -> str:
    return json.dumps(value)[1:-1]


def _json_unicode(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)[1:-1]


def _write_json(encode: _Encode, escapes: tuple[str, str], slash: bool, upper: bool, value: str) -> str:
    """As writers of JSON have it that escape some characters that need not be, such as those with a meaning in HTML."""
    text = encode(value)
    escaped, digits = escapes
    if escaped:
        text = re.sub(f"[{escaped}]", lambda found: f"\\u{ord(found[0]):{digits}}", text)
    if slash:
        text = text.replace("/", "\\/")
    return _in_upper_case(text) if upper else text


def _repr(value: str | bytes) -> str:
    """As within a text with both sorts of quotes, where one of them is escaped."""
    return repr('"' + value)[2:-1] if isinstance(value, str) else repr(b'"' + value)[3:-1]


def _ascii(value: str) -> str:
    return ascii('"' + value)[2:-1]


def _repr_bytes(value: str) -> str:
    return _repr(value.encode(errors="surrogateescape"))


def _in_other_quotes(encode: _Encode) -> _Encode:
    return lambda value: encode(value).replace("\\'", "'")


def _url(value: str, safe: str = "", *, escaped: str = "") -> str:
    text = quote(value, safe=safe, errors="surrogateescape")
    return text.replace(escaped, f"%{ord(escaped):02X}") if escaped else text


def _form(value: str, safe: str = "", *, escaped: str = "") -> str:
    text = quote_plus(value, safe=safe, errors="surrogateescape")
    return text.replace(escaped, f"%{ord(escaped):02X}") if escaped else text


def _in_lower_case(value: str) -> str:
    """With the escapes of URLs as some write them."""
    return re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), value)


def _in_upper_case(value: str) -> str:
    """With the escapes of JSON as some write them."""
    return re.sub(r"(?<=\\u)[0-9a-f]{4}", lambda found: found[0].upper(), value)


def _in_base64(value: str, before: int, special: bytes = b"+/") -> str:
    data = bytes(before) + value.encode(errors="surrogateescape")
    whole = base64.b64encode(data, special).decode()
    # the first and the last characters depend on what is around, too
    start = (before * 8 + 5) // 6
    end = len(data) * 8 // 6
    return whole[start:end]


def _after(outer: _Encode, inner: _Encode) -> _Encode:
    return lambda value: outer(inner(value))


_PLAIN_JSON: Mapping[str, _Encode] = {"json": _json, "json-unicode": _json_unicode}
_IN_HTML = {"": ("", "")} | {
    f"-{name}{size}": (escaped, digits)
    for (name, escaped), (size, digits) in product(
        {"go": "<>&", "page": "<>&'"}.items(), {"": "04x", "-large": "04X"}.items()
    )
}
"""Characters that have a meaning in HTML, as writers of JSON escape them, Go's or others; and with which digits."""


def _json_encodings() -> Iterator[tuple[str, _Encode]]:
    for (name, encode), (html, escapes), slash, upper in product(
        _PLAIN_JSON.items(), _IN_HTML.items(), (False, True), (False, True)
    ):
        how = f"{name}{html}{'-slash' * slash}{'-upper' * upper}"
        yield how, partial(_write_json, encode, escapes, slash, upper)


def _url_encodings() -> Iterator[tuple[str, _Encode]]:
    encodings: dict[str, _Encode] = {
        "url": _url,
        "url-path": partial(_url, safe="/"),
        "url-script": partial(_url, safe="!'()*"),
        "url-whole": partial(_url, safe=";,/?:@&=+$-_.!~*'()#"),
        "form": _form,
        "form-tilde": partial(_form, escaped="~"),
        "form-star": partial(_form, safe="*", escaped="~"),
    }
    yield from encodings.items()
    for name, encode in encodings.items():
        yield f"{name}-lower", _after(_in_lower_case, encode)


def _all_encodings() -> Iterator[tuple[str, _Encode]]:
    """In the order in which they are looked for: what is the same in several has the name of the first."""
    yield "", str
    in_json = dict(_json_encodings())
    yield from in_json.items()
    # what holds it is written by Python, or by what leaves letters as they are
    for _ in range(2):
        in_json = {
            f"{outer}-{name}": _after(encode, inner)
            for outer, encode in (("j", _json), ("ju", _json_unicode))
            for name, inner in in_json.items()
        }
        yield from in_json.items()
    in_python: dict[str, _Encode] = {"repr": _repr, "repr-bytes": _repr_bytes, "ascii": _ascii}
    in_python |= {f"{name}-quoted": _in_other_quotes(encode) for name, encode in in_python.items()}
    yield from in_python.items()
    for (outer, encode), (name, inner) in product(_PLAIN_JSON.items(), in_python.items()):
        yield f"{outer}-{name}", _after(encode, inner)
    for (outer, encode), (name, inner) in product(in_python.items(), _PLAIN_JSON.items()):
        yield f"{outer}-{name}", _after(encode, inner)
    yield "yaml", lambda value: value.replace("'", "''")
    yield from _url_encodings()
    # base64 of what holds the value depends on where in that it stands; these are what is the same for each place
    for place, (name, special) in product(range(3), {"": b"+/", "-url": b"-_"}.items()):
        yield f"base64{name}-{place}", partial(_in_base64, before=place, special=special)
    for place in range(3):
        yield f"base64-slash-{place}", lambda value, place=place: _in_base64(value, place).replace("/", "\\/")


_ENCODINGS: Mapping[str, _Encode] = dict(_all_encodings())
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
        spellings: defaultdict[str, list[str]] = defaultdict(list)
        for name, value in sorted(values.items()):
            if len(value) < _SHORTEST:
                continue
            for encoding, encode in _ENCODINGS.items():
                how = f"/{encoding}" if encoding else ""
                if (text := encode(value)) not in self._placeholders:
                    self._placeholders[text] = f"«{name}{how}#{nonce}»"
                    spellings[_core(value, text)].append(text)
        self._values = {
            placeholder: text
            for text, placeholder in self._placeholders.items()
            if shown is None or placeholder[1:].partition("#")[0].partition("/")[0] in shown
        }
        self._spellings = [*spellings.items()]
        """Each with what is in all of them, for which is looked first."""
        self._as_bytes = [
            (core.encode(), [text.encode(errors="surrogateescape") for text in texts])
            for core, texts in self._spellings
        ]
        self._shortest = min(map(len, self._placeholders), default=0)
        self._shown = re.compile(rf"«[^«»]*#{re.escape(nonce)}»")

    def are_in(self, data: bytes) -> bool:
        """Whether one of the values is in the bytes of a file. Takes linear time, and lets other threads run meanwhile."""
        return any(
            _is_in(data, core) and any(_is_in(data, text) for text in texts) for core, texts in self._as_bytes
        )

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
        possible = (value for core, values in self._spellings if core in text for value in values)
        next_places = {value: place for value in possible if (place := text.find(value)) >= 0}
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


def _core(value: str, spelling: str) -> str:
    """Letters and digits that a spelling of a value has as they are, as others of it have; all of it if it has not."""
    longest = max(_AS_THEY_ARE.findall(value), key=len, default="")
    return longest if longest in spelling else spelling


def _is_in(data: bytes, value: bytes) -> bool:
    # no other thread runs during one search, so it goes piece by piece
    return any(
        data.find(value, start, start + _PIECE + len(value) - 1) >= 0 for start in range(0, len(data), _PIECE)
    )


def named_by(nonce: str) -> re.Pattern[bytes]:
    """Finds the names in the placeholders of a run, in a file."""
    return re.compile(rf"«([^«»/#]{{1,200}})(?:/[a-z0-9-]{{1,60}})?#{re.escape(nonce)}»".encode())


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


Owner = Literal["block", "attempt"]

_asking: ContextVar[int | None] = ContextVar("codeact_team_asking", default=None)
"""The number of the entry of the effect that is under way."""
_owner: ContextVar[tuple[Owner, int] | None] = ContextVar("codeact_team_owner", default=None)
"""What everything is asked by that is asked now, as it is done again by itself: the innermost block, or attempt."""


class Questions:
    """Writes down what is asked, without credentials, and with what is large in it beside the journal.

    Args:
        hidden: What must not be written.
        blobs: Where what is large is kept.
    """

    def __init__(self, hidden: HiddenValues, blobs: Blobs) -> None:
        self._hidden = hidden
        self._blobs = blobs

    async def asked(self, effect: Effect[Any]) -> dict[str, JsonValue]:
        """What is asked, as an entry has it.

        Raises:
            JournalError: If what is large in it cannot be written.
        """
        by = f"{effect.source}@{place_of(effect.part)}"
        asked: dict[str, JsonValue] = {
            "by": by,
            "kind": effect.kind,
            "request": await self._packed_aside(effect.request()),
        }
        if (owner := _owner.get()) is not None:
            asked[owner[0]] = owner[1]
        return asked | {"key": _key_of(asked)}

    async def _packed_aside(self, value: JsonValue) -> JsonValue:
        if is_light(value):
            return self.packed(value)
        return await to_the_end(asyncio.to_thread(self.packed, value))

    def packed(self, value: JsonValue) -> JsonValue:
        """A value as an entry has it. Blocks, the longer the larger it is; raises as :meth:`asked`."""
        return self._blobs.pack(self._hidden.hide(value))

    def shown(self, value: JsonValue) -> JsonValue:
        """What was recorded, with the credentials that are known now."""
        return self._hidden.show(value)

    def error(self, recorded: JsonValue) -> RecordedError:
        """An error that was recorded, by the words that it had."""
        told: Any = self.shown(recorded)
        return RecordedError(told["text"], type_name=told["type"], status_code=told.get("status"))


@contextmanager
def inside(n: int, owner: Owner | None = None) -> Generator[None]:
    """Within it, effects are asked for by the one whose entry has the number ``n``; ``owner`` says if it is one."""
    token = _asking.set(n)
    owned = None if owner is None else _owner.set((owner, n))
    try:
        yield
    finally:
        _asking.reset(token)
        if owned is not None:
            _owner.reset(owned)


def asking() -> int | None:
    """The number of the entry of the effect that is under way, if one is."""
    return _asking.get()


def attempting() -> int | None:
    """The number of the entry of the attempt that asks, if one does by itself and not by its code."""
    owner = _owner.get()
    return owner[1] if owner is not None and owner[0] == "attempt" else None


def owner_of(asked: Mapping[str, Any]) -> int | None:
    """The number of the block, or of the attempt, in which something is asked, as an entry has it."""
    return asked.get("block", asked.get("attempt"))


def _key_of(asked: dict[str, JsonValue]) -> str:
    """A digest of who asks what, and in which block or attempt."""
    question = [asked["by"], asked["kind"], asked["request"], owner_of(asked)]
    return sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:32]
