"""No credential is written, in whatever way it is spelled, and only the run itself finds it again."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from urllib.parse import quote, quote_plus, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from codeact_team.journal.hidden_values import HiddenValues

SECRET = 's3cr3t/"key+\\é&%'
WAYS: dict[str, Callable[[str], str]] = {
    "as it is": lambda value: f"Bearer {value}!",
    "in JSON": lambda value: json.dumps({"key": value}),
    "in JSON that is text": lambda value: json.dumps({"key": value}, ensure_ascii=False),
    "in a URL": lambda value: f"https://host/?key={quote(value, safe='')}",
    "in a path": lambda value: f"https://host/{quote(value)}",
    "in a form": lambda value: urlencode({"key": value}),
    "in base64": lambda value: base64.b64encode(value.encode()).decode(),
    "in base64 of a user and a password": lambda value: base64.b64encode(f"me:{value}".encode()).decode(),
    "in base64 behind more": lambda value: base64.b64encode(f"user:{value}:x".encode()).decode(),
}


def spellings(value: str) -> list[str]:
    """What would give it away."""
    whole = [base64.b64encode(bytes(before) + value.encode()).decode()[4:-4] for before in range(3)]
    return [value, json.dumps(value)[1:-1], quote(value, safe=""), quote_plus(value), *whole]


@pytest.mark.parametrize("way", WAYS)
def test_a_credential_is_hidden_and_found_again(way: str) -> None:
    hidden = HiddenValues({"API_KEY": SECRET}, "n0nce")
    text = WAYS[way](SECRET)
    written = hidden.hide([{"said": text, SECRET: 1}])
    dumped = json.dumps(written, ensure_ascii=False)
    assert not [spelling for spelling in spellings(SECRET) if spelling in dumped]
    assert "API_KEY" in dumped
    assert hidden.show(written) == [{"said": text, SECRET: 1}]


def test_a_placeholder_that_code_has_guessed_finds_nothing() -> None:
    hidden = HiddenValues({"API_KEY": SECRET}, "n0nce")
    guesses = ["«API_KEY#guess»", "${API_KEY}", "«API_KEY»"]
    assert hidden.show(hidden.hide(list(guesses))) == guesses


def test_what_the_environment_has_no_more_keeps_its_placeholder() -> None:
    written = HiddenValues({"API_KEY": SECRET}, "n0nce").hide(SECRET)
    assert HiddenValues({}, "n0nce").show(written) == written
    assert HiddenValues({"API_KEY": "another-key"}, "n0nce").show(written) == "another-key"


@given(st.text(min_size=8), st.text())
def test_no_value_is_left_whatever_is_around_it(value: str, around: str) -> None:
    hidden = HiddenValues({"KEY": value}, "n0nce")
    text: JsonValue = f"{around}{value}{around}"
    assert hidden.show(hidden.hide(text)) == text
