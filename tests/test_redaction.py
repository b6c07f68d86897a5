"""No credential is written, in whatever way it is spelled, and only the run itself finds it again."""

from __future__ import annotations

import asyncio
import base64
import functools
import json
import re
from collections.abc import Callable
from urllib.parse import quote, quote_plus, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue
from support.cost import LINEAR, SHORT, growth, longest_turn

from codeact_team.text.redaction import Redactor, without_secrets

SECRET = "s3cr3t/\"k'ey+\\é&%<~x>"
SECRETS = [SECRET, "ab/cd<ef12&", "pass&wo'rd12é", "ab?>c*d~~1234????", 'ab"cdé\\1234']


def with_escapes(text: str, characters: str, digits: str = "04x") -> str:
    return re.sub(f"[{characters}]", lambda found: f"\\u{ord(found[0]):{digits}}", text)


def unicode(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


WAYS: dict[str, Callable[[str], str]] = {
    "as it is": lambda value: f"Bearer {value}!",
    "in JSON": lambda value: json.dumps({"key": value}),
    "in JSON that is text": lambda value: json.dumps({"key": value}, ensure_ascii=False),
    "in a URL": lambda value: f"https://host/?key={quote(value, safe='')}",
    "in a path": lambda value: f"https://host/{quote(value)}",
    "in a form": lambda value: urlencode({"key": value}),
    "in JSON in JSON": lambda value: json.dumps(json.dumps({"key": value})),
    "in JSON in JSON that is text": lambda value: json.dumps(
        json.dumps({"key": value}, ensure_ascii=False), ensure_ascii=False
    ),
    "in JSON three deep": lambda value: json.dumps(json.dumps(json.dumps(value))),
    "in JSON with large digits": lambda value: json.dumps(value).replace("00e9", "00E9"),
    "in JSON with slashes": lambda value: json.dumps(value).replace("/", "\\/"),
    "in JSON of a page": lambda value: re.sub(
        "[<>&']", lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value)
    ),
    "in JSON of Go": lambda value: with_escapes(unicode({"key": value}), "<>&"),
    "in JSON of PHP": lambda value: json.dumps({"key": value}).replace("/", "\\/"),
    "in JSON of PHP for HTML": lambda value: with_escapes(
        json.dumps(value).replace("/", "\\/"), "<>&'", "04X"
    ),
    "in JSON with slashes and letters": lambda value: unicode(value).replace("/", "\\/"),
    "in JSON three deep with letters": lambda value: unicode(unicode(unicode(value))),
    "in JSON with letters, in JSON": lambda value: json.dumps(unicode(value)),
    "in JSON, in JSON with letters": lambda value: unicode(json.dumps(value)),
    "in JSON of Go, in JSON": lambda value: json.dumps(with_escapes(unicode(value), "<>&")),
    "in JSON with large digits, in JSON": lambda value: json.dumps(json.dumps(value).replace("00e9", "00E9")),
    "in a repr": lambda value: repr({"key": value}),
    "in a repr of JSON with letters": lambda value: repr(unicode({"key": value})),
    "in JSON with letters of a repr": lambda value: unicode(repr({"key": value})),
    "in JSON of a repr of bytes": lambda value: json.dumps(repr(value.encode())),
    "in ASCII": lambda value: ascii([value]),
    "in JSON of what is in ASCII": lambda value: json.dumps(ascii(value)),
    "in a repr of JSON": lambda value: repr(json.dumps({"key": value})),
    "in a repr of bytes": lambda value: repr(value.encode()),
    "in JSON of a repr": lambda value: json.dumps(repr(value)),
    "in YAML": lambda value: "key: '" + value.replace("'", "''") + "'",
    "in a URL with small digits": lambda value: quote(value, safe="").lower(),
    "in a form with small digits": lambda value: quote_plus(value).lower(),
    "in a whole URL": lambda value: quote(value, safe=";,/?:@&=+$-_.!~*'()#"),
    "in a form of Java or of a browser": lambda value: quote_plus(value, safe="*").replace("~", "%7E"),
    "in a form with an escaped tilde": lambda value: quote_plus(value).replace("~", "%7e").lower(),
    "in base64 in JSON with slashes": lambda value: json.dumps(
        base64.b64encode(f"{value}??>>".encode()).decode()
    ).replace("/", "\\/"),
    "in base64 of URLs": lambda value: base64.urlsafe_b64encode(f"?{value}".encode()).decode(),
    "in base64": lambda value: base64.b64encode(value.encode()).decode(),
    "in base64 of a user and a password": lambda value: base64.b64encode(f"me:{value}".encode()).decode(),
    "in base64 behind more": lambda value: base64.b64encode(f"user:{value}:x".encode()).decode(),
}


def spellings(value: str) -> list[str]:
    """What would give it away."""
    whole = [base64.b64encode(bytes(before) + value.encode()).decode()[4:-4] for before in range(3)]
    return [value, json.dumps(value)[1:-1], quote(value, safe=""), quote_plus(value), *whole]


@functools.cache
def redactor_of(secret: str) -> Redactor:
    return Redactor({"API_KEY": secret}, "n0nce")


@pytest.mark.parametrize("way", WAYS)
def test_a_credential_is_hidden_and_found_again(way: str) -> None:
    for secret in SECRETS:
        redactor = redactor_of(secret)
        text = "x " * 1500 + WAYS[way](secret) + " y" * 1500
        written = redactor.redact([{"said": text}])
        dumped = json.dumps(written, ensure_ascii=False)
        assert not [spelling for spelling in spellings(secret) if spelling in dumped]
        assert "API_KEY" in dumped
        assert redactor.restore(written) == [{"said": text}]
        assert redactor.found_in(text.encode())


def test_a_credential_is_hidden_in_names_as_well() -> None:
    redactor = Redactor({"API_KEY": SECRET}, "n0nce")
    written = redactor.redact({SECRET: 1})
    assert SECRET not in str(written)
    assert redactor.restore(written) == {SECRET: 1}


def test_a_placeholder_that_code_has_guessed_finds_nothing() -> None:
    redactor = Redactor({"API_KEY": SECRET}, "n0nce")
    guesses = ["«API_KEY#guess»", "${API_KEY}", "«API_KEY»"]
    assert redactor.restore(redactor.redact(list(guesses))) == guesses


def test_what_the_environment_has_no_more_keeps_its_placeholder() -> None:
    written = Redactor({"API_KEY": SECRET}, "n0nce").redact(SECRET)
    assert Redactor({}, "n0nce").restore(written) == written
    assert Redactor({"API_KEY": "another-key"}, "n0nce").restore(written) == "another-key"


@given(st.text(min_size=8), st.text())
def test_no_value_is_left_whatever_is_around_it(value: str, around: str) -> None:
    redactor = Redactor({"KEY": value}, "n0nce")
    text: JsonValue = f"{around}{value}{around}"
    assert redactor.restore(redactor.redact(text)) == text


@pytest.mark.parametrize(
    "values", [{"LONG": "A" * 8 + "b"}, {"ONE": "Ab" * 4, "OTHER": "bAb" * 3, "LONG": "bA" * 5}]
)
@given(st.text("Ab", min_size=8, max_size=60))
def test_what_overlaps_is_hidden_from_the_left_the_longest_first(values: dict[str, str], text: str) -> None:
    redactor = Redactor(values, "n0nce")
    pattern = re.compile("|".join(sorted(values.values(), key=len, reverse=True)))
    names = {value: name for name, value in values.items()}
    assert redactor.redact(text) == pattern.sub(lambda found: f"«{names[found[0]]}#n0nce»", text)


def nearly(size: int) -> tuple[Redactor, str]:
    """A text in which a value is nearly found at each character; both are longer for a larger size."""
    return Redactor({"KEY": "a" * (size >> 13) + "b"}, "n0nce"), "a" * size


def test_a_value_that_is_nearly_found_everywhere_costs_linear_time() -> None:
    assert growth(nearly, lambda given: given[0].redact(given[1]), 1 << 21) < LINEAR
    assert growth(nearly, lambda given: given[0].found_in(given[1].encode()), 1 << 21) < LINEAR


@pytest.mark.long
def test_a_value_that_is_found_again_and_again_costs_linear_time() -> None:
    redactor = Redactor({"KEY": "abababab", "OTHER": "babababa", "LAST": "abababac"}, "n0nce")
    assert growth(lambda size: "ab" * size, redactor.redact, 1 << 16) < LINEAR


@pytest.mark.long
async def test_the_loop_goes_on_while_a_large_file_is_searched_in_a_thread() -> None:
    redactor, data = Redactor({"KEY": "a" * 99 + "b"}, "n0nce"), b"a" * (60 << 20)
    assert await longest_turn(asyncio.to_thread(redactor.found_in, data)) < SHORT


@pytest.mark.parametrize("length", range(8, 20))
def test_a_value_is_found_wherever_a_piece_of_a_large_file_ends(length: int) -> None:
    value = "".join(map(chr, range(97, 97 + length)))
    redactor = Redactor({"KEY": value}, "n0nce")
    for before in range((1 << 20) - length, (1 << 20) + 1):
        assert redactor.found_in(bytes(before) + value.encode() + bytes(100))
    assert not redactor.found_in(bytes((1 << 20) - length + 1) + value[:-1].encode())


@pytest.mark.parametrize("way", WAYS)
def test_text_that_is_shown_has_the_name_in_place_of_a_credential(way: str) -> None:
    for secret in SECRETS:
        shown = without_secrets(WAYS[way](secret), {"API_KEY": secret, "HOME": "/home"})
        assert not [spelling for spelling in spellings(secret) if spelling in shown]
        assert "${API_KEY}" in shown or "(a key)" in shown


def test_text_that_is_shown_has_nothing_that_looks_like_a_key() -> None:
    assert without_secrets("Bearer abc sk-0123456789", {}) == "Bearer (a key) (a key)"


@given(before=st.binary(max_size=8), after=st.binary(max_size=8), urlsafe=st.booleans())
def test_bytes_in_base64_hold_none_wherever_it_stands_in_them(
    before: bytes, after: bytes, urlsafe: bool
) -> None:
    redactor = Redactor({"API_KEY": SECRET}, "n0nce")
    encode = base64.urlsafe_b64encode if urlsafe else base64.b64encode
    data = before + json.dumps(SECRET).encode() + after
    written = redactor.redact({"stdout": encode(data).decode()})
    assert isinstance(written, dict)
    assert not redactor.found_in(bytes_in(written["stdout"]))
    restored = redactor.restore(written)
    assert isinstance(restored, dict)
    assert bytes_in(restored["stdout"]) == data
    assert urlsafe or restored["stdout"] == encode(data).decode()


def bytes_in(text: JsonValue) -> bytes:
    return base64.b64decode(str(text).translate(str.maketrans("-_", "+/")))
