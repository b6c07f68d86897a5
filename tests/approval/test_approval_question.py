"""What a person gets to read of hostile code and arguments."""

from __future__ import annotations

import unicodedata
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from codeact_team.tools.approval_rules import Question

ANYTHING = st.text(alphabet=st.characters(codec=None), max_size=60)
values: st.SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANYTHING,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANYTHING, inner, max_size=3),
    max_leaves=8,
)


def call(**arguments: JsonValue) -> str:
    return Question("helper", "tool", "orders.refund", arguments).to_text()


def test_a_call_is_told_argument_by_argument():
    question = Question(
        "helper",
        "tool",
        "orders.refund",
        {"order": "A-17", "amount": 2.5, "items": [1, {"a": None}], "note": "two\nlines\n"},
        reason="refunds need\na person\n",
    )
    assert question.to_text() == (
        "helper wants to call orders.refund:\n"
        '| order: "A-17"\n'
        "| amount: 2.5\n"
        "| items: [\n"
        "|       1,\n"
        "|       {\n"
        '|         "a": null\n'
        "|       }\n"
        "|     ]\n"
        "| note:\n"
        "|     | two\n"
        "|     | lines\n"
        "|     | \n"
        "You are asked because: refunds need a person"
    )
    assert question.grant == "orders.refund with any arguments"
    assert Question("helper", "tool", "now").to_text() == "helper wants to call now:\n| (no arguments)"


def test_code_is_told_as_it_is():
    question = Question("helper", "code", "python", code="if x:\n\tprint('ü')\n\n")
    assert question.to_text() == "helper wants to run python code:\n| if x:\n| ␉   print('ü')"
    assert question.grant == "all code"
    shell = Question("helper", "code", "python", code="x = !ls")
    assert shell.to_text() == "helper wants to run python code that runs a shell:\n| x = !ls"
    assert Question("helper", "code", "python", code="'!ls'").deed == "run python code"


@given(
    st.builds(Question, ANYTHING, st.just("tool"), ANYTHING, st.dictionaries(ANYTHING, values, max_size=4))
    | st.builds(Question, ANYTHING, st.just("code"), ANYTHING, code=ANYTHING)
)
def test_nothing_steers_a_terminal_hides_or_leaves_its_place(question: Question):
    text = question.to_text()
    assert not any(unicodedata.category(char)[0] == "C" for char in text if char not in "\t\n")
    first, *rest = text.split("\n")
    assert first.endswith(":")
    assert rest
    assert all(line.startswith(("| ", "|↳ ")) for line in rest)
    assert "\n" not in question.grant + question.deed + question.headline


def test_a_padded_value_begins_no_line_of_the_screen():
    question = Question("helper", "tool", "pay", {"to": "bob" + " " * 93 + "✓ allowed: call pay"})
    for width in range(1, 150):
        lines = question.to_text(width=width).split("\n")[1:]
        assert all(line.startswith(("| ", "|↳ ")) for line in lines)
        assert all(len(line) <= max(width, 6) for line in lines)


def test_what_is_long_is_shown_whole():
    lines = [f"line {number}" for number in range(5_000)]
    question = Question("helper", "code", "python", code="\n".join(lines))
    assert question.to_text().split("\n")[1:] == [f"| {line}" for line in lines]
    wide = Question("helper", "code", "python", code=f"{'a' * 15_000};evil();{'b' * 15_000}")
    assert wide.to_text().replace("\n|↳ ", "").endswith(f"| {wide.code}")
    arguments = {f"a{number}": cast(JsonValue, [number] * 50) for number in range(100)}
    arguments["n" * 500] = "one\n" * 500 + "last"
    called = Question("helper", "tool", "pay", arguments)
    assert "| a99: [\n|       99,\n" in called.to_text()
    assert f"{'n' * 500}:\n" + "    | one\n" * 500 + "    | last" in called.details
    assert not any((question.obstacle, wide.obstacle, called.obstacle))


@pytest.mark.parametrize(
    "arguments",
    [
        {"a": "x" * 1_000_000},
        {"a": "x\n" * 1_000_000},
        {"a": [*"y" * 100_000]},
        {f"a{number}": "x" * 1_000 for number in range(1_000)},
        {"n" * 1_000_000: 1},
        {f"a{number}": number for number in range(100_000)},
        {"a": 10**5_000},
    ],
)
def test_what_is_too_long_to_be_shown_cannot_be_approved(arguments: dict[str, JsonValue]):
    question = Question("helper", "tool", "pay", arguments)
    assert "100,000 characters that are shown to a person" in question.obstacle
    assert len(question.details) < 3_000_000
    assert "shown" in question.details


def test_long_code_and_names_cannot_be_approved():
    code = Question("helper", "code", "python", code="x = 1\n" * 20_000)
    assert "write shorter code" in code.obstacle
    assert "characters are not shown ...]" in code.details
    assert Question("helper", "tool", "b" * 101).obstacle
    assert len(Question("a" * 10**6, "tool", "b" * 10**6, reason="c" * 10**6).to_text()) < 2_000


@pytest.mark.parametrize("char", "\0\b\x0b\x0c\r\x1a\x1b\x1c\x1d\x1e\x7f\x85\x9b\ud800")
def test_code_with_what_interpreters_read_in_their_own_ways_cannot_be_approved(char: str):
    # "if x:\n    \f" ends an indentation for Python; a shell's comment goes on after a carriage return
    for language in ("python", "sh"):
        obstacle = Question("helper", "code", language, code=f"a\n# b{char}c").obstacle
        assert obstacle.startswith(f"line 2 holds U+{ord(char):04X} ")
    assert Question("helper", "code", "sh", code="cat <<E\nE\r\nE").obstacle
    assert not Question("helper", "code", "python", code="if x:\r\n\ty = 'ü 日本 👍🏽'\r\n").obstacle
    assert not Question("helper", "tool", "write", {"text": f"a\n# b{char}c"}).obstacle


@pytest.mark.parametrize("char", "\u2028\u2029\u200b\u202e\u2066\xa0\u3000\u2003\xad\ufeff\u3164")
def test_what_looks_like_a_blank_or_like_nothing_is_written_out(char: str):
    # after a blank that is none, "#" begins no comment of a shell
    code = Question("helper", "code", "sh", code=f"echo hi{char}# ; rm -rf x")
    assert code.details == f"echo hi\\u{ord(char):04x}# ; rm -rf x"
    assert not code.obstacle
    assert f'"a\\u{ord(char):04x}b"' in call(path=f"a{char}b")


def test_blanks_at_the_end_of_a_line_and_carriage_returns_show():
    shown = Question("helper", "code", "sh", code="echo rm -rf \\ \t\n/home  ").details
    assert shown == "echo rm -rf \\␠␉\n/home␠␠"
    assert "|     | a ␍\n|     | b␍\n|     | c" in call(text="a \r\nb\rc")


@pytest.mark.parametrize("language", ["python", "Python", "py", "ruby"])
@pytest.mark.parametrize(
    "code",
    [
        "# -*- coding: utf-7 -*-\n# harmless +AAo-print(1)+AAo-",
        "#!/usr/bin/python\n# vim: set fileencoding=unicode_escape :\n# \\nprint(1)",
        "\n\t#coding=raw_unicode_escape\n# \\u000aprint(1)",
        "# filename: a.py\n# coding:! coding:latin-1",
        "\ufeff# coding: utf-16",
    ],
)
def test_code_of_another_encoding_cannot_be_approved(code: str, language: str):
    obstacle = Question("helper", "code", language, code=code).obstacle
    assert obstacle.startswith("a comment declares the encoding ")


def test_a_comment_that_names_no_other_encoding_is_no_obstacle():
    for code in (
        "# coding: utf-8\nx",
        "# -*- coding: UTF8 -*-\nx",
        "x = 1\n\n# coding: utf-7",
        "x = 1 # coding: utf-7",
    ):
        assert not Question("helper", "code", "python", code=code).obstacle
    assert not Question("helper", "code", "sh", code="# decoding: base64\n").obstacle


def test_a_value_that_cannot_be_written_down_says_so():
    deep: JsonValue = []
    for _ in range(100_000):
        deep = [deep]
    assert "| a: (nested too deeply, or too large, to be shown)\n" in call(a=deep, b=10**5_000)
