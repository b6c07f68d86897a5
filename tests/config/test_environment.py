from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeact_team.config.document import Document, escape
from codeact_team.config.overrides import UnresolvedError, resolve_references, resolve_text

DOLLARS = st.text("${}:-aA_ 1\n", max_size=20)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${NAME}", "value"),
        ("a ${NAME} b ${NAME}", "a value b value"),
        ("${UNSET:-default}", "default"),
        ("${UNSET:-}", ""),
        ("${UNSET:-a:-b}", "a:-b"),
        ("${EMPTY}", ""),
        ("${EMPTY:-default}", "default"),
        ("${NAME:-default}", "value"),
        ("$${NAME}", "${NAME}"),
        ("$$${NAME}", "$${NAME}"),
        ("$NAME $$ {NAME} $5", "$NAME $$ {NAME} $5"),
        # what a variable holds is not searched again
        ("${TRICK}", "${NAME} $${NAME}"),
    ],
)
def test_references_are_resolved(text: str, expected: str) -> None:
    environ = {"NAME": "value", "EMPTY": "", "TRICK": "${NAME} $${NAME}"}
    assert resolve_text(text, environ).text == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("${UNSET}", "the environment variable UNSET is not set"),
        ("${}", "'${}' is not a reference"),
        ("${1}", "'${1}' is not a reference"),
        ("${NAME", "'${NAME' is not a reference"),
        ("${NAME:default}", "'${NAME:default}' is not a reference"),
        ("${NAME} ${a b}", "'${a b}' is not a reference"),
    ],
)
def test_what_cannot_be_resolved_says_what_to_do(text: str, message: str) -> None:
    with pytest.raises(UnresolvedError) as caught:
        resolve_text(text, {"NAME": "value"})
    assert message in str(caught.value)


@given(st.text() | DOLLARS)
def test_escaped_text_resolves_to_itself(text: str) -> None:
    resolved = resolve_text(escape(text), {})
    assert resolved.text == text
    assert resolved.written is None


@given(st.text() | DOLLARS, st.text() | DOLLARS)
def test_a_value_arrives_unchanged_whatever_it_holds(value: str, around: str) -> None:
    text = f"{escape(around)} ${{NAME}} {escape(around)}"
    assert resolve_text(text, {"NAME": value}).text == f"{around} {value} {around}"


@given(st.text() | DOLLARS)
def test_any_text_resolves_or_says_why_not(text: str) -> None:
    with suppress(UnresolvedError):
        assert "${" not in text or len(resolve_text(text, {"A": "x"}).text) < len(text)


def resolve(data: dict[str, object], environ: dict[str, str]) -> Document:
    document = resolve_references(Document("t.yaml", data), environ)
    assert not document.unresolved
    return document


def test_all_text_but_keys_is_resolved_and_the_rest_stays() -> None:
    data: dict[str, object] = {"${A}": ["${A}", {"x": "-${A}-"}], "n": 1, "f": 1.5, "b": True, "z": None}
    document = resolve(data, {"A": "v"})
    assert document.data == {"${A}": ["v", {"x": "-v-"}], "n": 1, "f": 1.5, "b": True, "z": None}
    assert {path: document.written(path) for path in document.references} == {
        ("${A}", 0): "${A}",
        ("${A}", 1, "x"): "-${A}-",
    }


def test_all_that_is_missing_is_told_with_its_place() -> None:
    document = resolve_references(Document("t.yaml", {"a": "${A1}", "b": ["${B1}"]}), {})
    assert [*document.unresolved] == [("a",), ("b", 0)]
    assert "A1" in document.unresolved["a",]
