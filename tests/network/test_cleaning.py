"""An answer never shows a key that the request had, however the server spells it and the network cuts it."""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.cost import LINEAR, growth

from codeact_team.network.secrets import Cleaner
from codeact_team.network.spellings import Spellings

SECRET = "s3cr3t/\"k'ey+\\é&%<~x>"
PLAIN = "sk-proj-Ab3dEfGh1jKlMn0p_12"
SECRETS = [SECRET, PLAIN, "12345678", "////////", "&amp;%25\\\\x", "geheim €😀 wort", "aaaaaaaab"]


def unicode(value: str) -> str:
    return "".join(f"\\u{int.from_bytes(value.encode('utf-16-be')[n : n + 2]):04x}" for n in _units(value))


def _units(value: str) -> range:
    return range(0, len(value.encode("utf-16-be")), 2)


WAYS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "in a URL": lambda value: quote(value, safe=""),
    "in a path": quote,
    "in a form": quote_plus,
    "in a URL with small digits": lambda value: re.sub("%..", lambda found: found[0].lower(), quote(value)),
    "in a URL in a URL": lambda value: quote(quote(value, safe="")),
    "all percent": lambda value: "".join(f"%{byte:02x}" for byte in value.encode()),
    "in JSON": lambda value: json.dumps(value)[1:-1],
    "in JSON as text": lambda value: json.dumps(value, ensure_ascii=False)[1:-1],
    "in JSON in JSON": lambda value: json.dumps(json.dumps(value))[3:-3],
    "in JSON of PHP": lambda value: json.dumps(value)[1:-1].replace("/", "\\/"),
    "in JSON, escaped as a whole": unicode,
    "in JSON, escaped as a whole, with large digits": lambda value: unicode(value).upper().replace("\\U", "\\u"),
    "in JSON of a page": lambda value: json.dumps(value)[1:-1].replace("<", "\\u003C").replace("&", "\\u0026"),
    "in a repr": lambda value: repr('"' + value)[2:-1],
    "in a repr of bytes": lambda value: repr(b'"' + value.encode())[3:-1],
    "in a script": lambda value: "".join(f"\\x{ord(c):02X}" if c < "\x7f" and not c.isalnum() else c for c in value),
    "in HTML": html.escape,
    "in HTML in HTML": lambda value: html.escape(html.escape(value)),
    "in HTML of PHP": lambda value: html.escape(value).replace("&#x27;", "&#039;"),
    "in HTML by names": lambda value: value.replace("&", "&amp;").replace("+", "&plus;").replace("/", "&sol;"),
    "in HTML by numbers": lambda value: "".join(f"&#{ord(c)};" for c in value),
    "in HTML by hex numbers": lambda value: "".join(f"&#X{ord(c):02X};" for c in value),
    "in XML": lambda value: value.replace("&", "&amp;").replace("<", "&lt;").replace("'", "&apos;"),
    "in hex": lambda value: value.encode().hex(),
    "in large hex": lambda value: value.encode().hex().upper(),
}  # fmt: skip
"""How programs write a text so that others read the same."""

BASE64: dict[str, Callable[[bytes], bytes]] = {
    "usual": base64.b64encode,
    "for URLs": base64.urlsafe_b64encode,
    "in a URL": lambda data: quote(base64.b64encode(data), safe="").encode(),
    "in JSON of PHP": lambda data: base64.b64encode(data).replace(b"/", b"\\/"),
    "in JSON of Go": lambda data: base64.b64encode(data).replace(b"+", b"\\u002b"),
}

around = st.binary(max_size=20) | st.sampled_from(
    [b"%", b"\\", b"&amp;", b"%2", b"\\u00", b"s3cr", b"sk-proj-"]
)
places = st.lists(st.integers(0, 400))


def cleaner_of(*secrets: str) -> Cleaner:
    names = {f"KEY{number}": secret for number, secret in enumerate(secrets)}
    return Cleaner(Spellings(names), {name: f"[{name}]".encode() for name in names})


def fed(cleaner: Cleaner, data: bytes) -> bytes:
    return b"".join(cleaner.feed(data))


def cleaned(cleaner: Cleaner, data: bytes, places: Iterable[int]) -> bytes:
    ends = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    pieces = [piece for begin, end in pairwise(ends) for piece in cleaner.feed(data[begin:end])]
    return b"".join([*pieces, cleaner.end()])


@pytest.mark.parametrize("way", WAYS)
@given(secret=st.sampled_from(SECRETS), before=around, after=around, places=places)
def test_a_secret_is_found_in_whatever_way_it_is_spelled_and_cut(
    way: str, secret: str, before: bytes, after: bytes, places: list[int]
) -> None:
    spelled = WAYS[way](secret).encode()
    whole = cleaned(cleaner_of(secret), before + spelled + after, [])
    assert spelled not in whole
    assert b"[KEY0]" in whole
    # however it comes, the same is left
    assert cleaned(cleaner_of(secret), before + spelled + after, places) == whole
    assert cleaner_of(secret).clean(before + spelled + after) == whole


@given(st.sampled_from(SECRETS), st.data(), places)
def test_each_character_may_be_escaped_in_a_way_of_its_own(
    secret: str, data: st.DataObject, places: list[int]
) -> None:
    ways = ["as it is", "all percent", "in JSON, escaped as a whole", "in HTML by numbers", "in HTML"]
    spelled = "".join(WAYS[data.draw(st.sampled_from(ways))](character) for character in secret)
    assert cleaned(cleaner_of(secret), f"<{spelled}>".encode(), places) == b"<[KEY0]>"


@pytest.mark.parametrize("way", BASE64)
@given(
    secret=st.sampled_from(SECRETS), before=st.binary(max_size=9), after=st.binary(max_size=9), places=places
)
def test_base64_of_what_holds_a_secret_gives_it_to_nobody(
    way: str, secret: str, before: bytes, after: bytes, places: list[int]
) -> None:
    encoded = BASE64[way](before + secret.encode() + after)
    shown = cleaned(cleaner_of(secret), b'"' + encoded + b'"', places)
    assert b"[KEY0]" in shown
    # of the characters at its ends, which have bits of what is around, too
    assert len(shown) < len(encoded) - len(secret) + 14


@given(st.binary(max_size=300), places)
def test_what_holds_no_secret_stays_as_it_is(data: bytes, places: list[int]) -> None:
    assert cleaned(cleaner_of(SECRET, PLAIN), data, places) == data
    assert cleaned(cleaner_of(), data, places) == data


@given(
    st.lists(st.sampled_from([b"s3cr", b"sk-proj-Ab3", b"%", b"&", b"\\", b"\\u00", b"73", b"czN", b" "])),
    places,
)
def test_what_begins_as_a_secret_stays_in_the_end(pieces: list[bytes], places: list[int]) -> None:
    data = b"".join(pieces)
    assert cleaned(cleaner_of(SECRET, PLAIN), data, places) == data


def test_several_secrets_are_found_one_behind_the_other() -> None:
    both = f"{PLAIN}{SECRET}{PLAIN}".encode()
    assert cleaner_of(PLAIN, SECRET).clean(both) == b"[KEY0][KEY1][KEY0]"
    # of two that begin alike, the longer one
    assert cleaner_of("secret-0", "secret-0123").clean(b"secret-0123 secret-0") == b"[KEY1] [KEY0]"
    assert cleaned(cleaner_of("secret-0", "secret-0123"), b"secret-0123", range(11)) == b"[KEY1]"


def test_an_event_is_not_kept_until_the_next_one() -> None:
    cleaner = cleaner_of(PLAIN)
    for event in (b'data: {"delta": "one"}\n\n', f"data: {PLAIN}\n\n".encode()):
        assert fed(cleaner, event) == event.replace(PLAIN.encode(), b"[KEY0]")
    # only that is, in which a secret has begun
    assert fed(cleaner, b"data: sk-pr") == b"data: "
    assert fed(cleaner, b"int\n\n") == b"sk-print\n\n"
    assert cleaner.end() == b""


@pytest.mark.parametrize(
    "flood",
    [PLAIN[:-1].encode(), b"s", b"%73k%2D", b"\\", b"&amp;", base64.b64encode(PLAIN.encode())[:-6]],
)
def test_cleaning_takes_linear_time(flood: bytes) -> None:
    def clean(data: bytes) -> None:
        cleaner = cleaner_of(PLAIN)
        fed(cleaner, data)
        cleaner.end()

    assert growth(lambda size: flood * (size // len(flood)), clean, 50_000, rounds=2) < LINEAR


def test_what_is_kept_back_is_bounded_in_bytes_and_time() -> None:
    """Also where each byte comes alone, and all of them might belong to a secret."""

    def clean(data: bytes) -> None:
        cleaner = cleaner_of("a" * 30 + "b")
        given = 0
        for number, byte in enumerate(data):
            given += len(fed(cleaner, bytes([byte])))
            assert number - given < 31 * 20

    assert growth(lambda size: b"a" * size, clean, 2_000, rounds=1) < LINEAR
