"""What a person gets to read of hostile code and arguments."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st
from pydantic import JsonValue

from codeact_team.approval import Question

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
    assert question.to_text() == "helper wants to run python code:\n| if x:\n|     print('ü')"
    assert question.grant == "all code"


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


def test_what_is_long_is_cut_and_says_so():
    lines = [f"line {number}" for number in range(10_000)]
    text = Question("helper", "code", "python", code="\n".join(lines)).to_text()
    assert len(text) < 25_000
    assert "\n| line 0\n" in text
    assert text.endswith("\n| line 9999")
    assert "characters are not shown ...]" in text
    assert len(call(a="x" * 1_000_000, b="\r" * 1_000_000, c=[*"y" * 100_000])) < 10_000
    assert len(Question("a" * 10**6, "tool", "b" * 10**6, reason="c" * 10**6).to_text()) < 2_000
    many = call(**{f"a{number}": number for number in range(1_000)})
    assert "| [... 970 more arguments are not shown ...]" in many


def test_a_value_that_cannot_be_written_down_says_so():
    deep: JsonValue = []
    for _ in range(100_000):
        deep = [deep]
    assert "| a: (nested too deeply, or too large, to be shown)\n" in call(a=deep, b=10**5_000)
