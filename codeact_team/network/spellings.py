"""Finds texts in bytes in whatever way a program has spelled them, also where the bytes come in pieces."""

from __future__ import annotations

import html.entities
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple, NoReturn

from codeact_team.text.redaction import in_base64

_ENTITIES: Mapping[str, list[str]] = defaultdict(list)
for _entity, _meant in html.entities.html5.items():
    if _entity.endswith(";"):
        _ENTITIES[_meant].append(_entity)


class Found(NamedTuple):
    """A text that was found.

    Attributes:
        name: Its name.
        begin: The place of its first byte.
        end: The place behind its last one.
    """

    name: str
    begin: int
    end: int


class Unpicklable:
    """What holds secrets stays in its process."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__} holds secrets, which are not written")


class Spellings(Unpicklable):
    """Finds texts as they are, percent-encoded, escaped for JSON, JavaScript, Python or HTML, in base64 and in hex.

    Each character may be escaped or not, in a way of its own. Base64 is found wherever in the encoded bytes a text
    stands, in either alphabet, and with its characters escaped as well.

    Args:
        texts: The texts by name.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        spellings = [spelling for name, text in texts.items() for spelling in _spellings(name, text)]
        self._longest_opening = 0
        self._by_first: defaultdict[int, list[_Spelling]] = defaultdict(list)
        openings: defaultdict[int, set[bytes]] = defaultdict(set)
        for spelling in spellings:
            second = _one_of(spelling.steps[1])
            for byte, ways in spelling.steps[0].items():
                self._by_first[byte].append(spelling)
                openings[byte] |= {re.escape(way[1:]) + second for way in ways}
                self._longest_opening = max(self._longest_opening, *(len(way) + 1 for way in ways))
        self._first = re.compile(_one_of(self._by_first))
        """The first byte of any spelling, and below it with the first byte of what follows the first character."""
        self._opening = re.compile(
            b"|".join(
                re.escape(bytes([byte])) + b"(?:%b)" % b"|".join(some) for byte, some in openings.items()
            )
            or b"(?!)"
        )

    def find(self, data: bytes, *, is_last: bool = True) -> tuple[list[Found], int]:
        """Find the texts in some bytes. Takes linear time.

        Args:
            data: What was left of the bytes before, and those that have come.
            is_last: Whether no more will come.

        Returns:
            What was found, and the place from which on bytes have to be kept, as a text may have begun there.
        """
        found: list[Found] = []
        place = 0
        while (begin := self._next_opening(data, place)) is not None:
            name, end, is_open = self._match(data, begin)
            if is_open and not is_last:
                return found, begin
            if end:
                found.append(Found(name, begin, end))
            place = end or begin + 1
        return found, len(data)

    def names_in(self, data: bytes) -> list[str]:
        """The names of the texts that are in some bytes, each once."""
        return list(dict.fromkeys(found.name for found in self.find(data)[0]))

    def _next_opening(self, data: bytes, place: int) -> int | None:
        """Find the next place where a text may begin."""
        # the second pattern finds one that does not end
        begins = (
            self._opening.search(data, place),
            self._first.search(data, max(place, len(data) - self._longest_opening)),
        )
        return min((begin.start() for begin in begins if begin is not None), default=None)

    def _match(self, data: bytes, begin: int) -> tuple[str, int, bool]:
        """Find the longest text that begins at a place, and whether it, or another one, might be longer with more bytes."""
        name, end, is_open = "", 0, False
        for spelling in self._by_first[data[begin]]:
            its_end, may_go_on = spelling.match(data, begin)
            is_open = is_open or may_go_on
            if its_end > end:
                name, end = spelling.name, its_end
        return name, end, is_open


def _one_of(some: Iterable[int]) -> bytes:
    """The pattern of one of several bytes."""
    return b"[%b]" % b"".join(b"\\x%02x" % byte for byte in some) if some else b"(?!)"


class _Spelling(Unpicklable):
    """A text, or its base64 or hex.

    Args:
        name: The text's name.
        steps: What may stand for each of its characters, by first byte.
    """

    def __init__(self, name: str, steps: list[_Step]) -> None:
        self.name = name
        self.steps = steps

    def match(self, data: bytes, begin: int) -> tuple[int, bool]:
        """Return where it ends, or zero if it is not there; and whether it might with more bytes."""
        places = {begin}
        is_open = False
        for step in self.steps:
            after: set[int] = set()
            for place in places:
                if place == len(data):
                    is_open = True
                    continue
                for one in step.get(data[place], ()):
                    if data.startswith(one, place):
                        after.add(place + len(one))
                    elif one.startswith(data[place : place + len(one)]):
                        is_open = True
            if not after:
                return 0, is_open
            places = after
        return max(places), is_open


_Step = Mapping[int, tuple[bytes, ...]]


def _spellings(name: str, text: str) -> Iterator[_Spelling]:
    yield _Spelling(name, [_step(character) for character in text])
    for before in range(3):
        encoded = in_base64(text, before)
        steps = [_step(_BASE64.get(character, character)) for character in encoded]
        yield _Spelling(name, steps)
    digits = text.encode().hex()
    for spelled in {digits, digits.upper()}:
        yield _Spelling(name, [{ord(digit): (digit.encode(),)} for digit in spelled])


_BASE64 = {"+": "+-", "/": "/_"}
"""Characters of base64 in whose place that for URLs has another one."""


@lru_cache
def _step(characters: str) -> _Step:
    """Find what may stand for any of these characters."""
    step: defaultdict[int, list[bytes]] = defaultdict(list)
    for one in {one for character in characters for one in _ways(character)}:
        step[one[0]].append(one)
    return {byte: tuple(some) for byte, some in step.items()}


def _ways(character: str) -> Iterator[bytes]:
    """Yield what may stand for a character."""
    data = character.encode()
    yield data
    if character == " ":
        yield b"+"
    if character.isascii() and not character.isalnum():
        # as in JSON, and in JSON within JSON
        yield from (b"\\" * count + data for count in (1, 2, 3))
    code = ord(character)
    # as UTF-16 has it; no codec, which the proxy could not load any more
    units = [code] if code < 0x10000 else [0xD7C0 + (code >> 10), 0xDC00 + (code & 0x3FF)]
    for change in (str.lower, str.upper):
        hex_bytes = [change(f"{byte:02x}") for byte in data]
        hex_units = [change(f"{unit:04x}") for unit in units]
        for escape in ("%", "%25", "\\x", "\\\\x"):
            yield "".join(escape + number for number in hex_bytes).encode()
        for escape in ("\\u", "\\\\u"):
            yield "".join(escape + number for number in hex_units).encode()
    for entity in _entities(character):
        yield f"&{entity}".encode()
        yield f"&amp;{entity}".encode()


def _entities(character: str) -> Iterator[str]:
    yield from _ENTITIES.get(character, ())
    code = ord(character)
    for zeros in ("", "0", "00"):
        yield f"#{zeros}{code};"
        for x, digits in ("xx", "xX", "Xx", "XX"):
            yield f"#{x}{zeros}{code:{digits}};"
