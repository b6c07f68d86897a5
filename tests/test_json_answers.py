from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.variations import mostly_long

from codeact_team.models.structured import UnreadableAnswer, read_object, read_value

GOOD = {"passed": True, "comment": "fine"}
GOOD_JSON = '{"passed": true, "comment": "fine"}'


def read(text: str, *, material: str = "") -> dict[str, Any] | None:
    try:
        return read_object(text, mark="4711", material=material)
    except UnreadableAnswer:
        return None


@given(st.text() | st.text(alphabet="{}[]\"'`~\\:,#/* \n“”‘’aT"), st.text(max_size=20))
def test_any_text_is_read_or_refused(text: str, material: str):
    read(text, material=material)
    read('{"a": ' + text + "}")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), json_values).filter(lambda value: "answer_mark" not in value))
def test_json_is_read_as_it_is(value: dict[str, Any]):
    assert read(json.dumps(value, ensure_ascii=False)) == value
    # neither of JSON5, nor of Python, but unmistakable
    assert read("{'\N{SNOWMAN}': None, # why\n" + json.dumps(value)[1:]) == {"\N{SNOWMAN}": None, **value}


prose = st.text().filter(lambda text: not any(sign in text for sign in ("`", "~", "{")))


@given(
    st.fixed_dictionaries({"passed": st.booleans(), "comment": st.text(), "hints": st.lists(st.text())}),
    prose,
    st.sampled_from(
        ["```\n{}\n```", "```json\n{}\n```\n", "~~~JSON\n{}", "```json\n{}```", "```json {}\n```"]
    ),
)
def test_an_object_in_the_last_fence_is_the_answer(value: dict[str, Any], before: str, fence: str):
    fenced = fence.replace("{}", json.dumps(value))
    assert read(fenced) == value
    assert read(f"{before}\n{fenced}") == value
    assert read(f"```python\nprint({{}})\n```\n{before}\n{fenced}") == value
    assert read(f"{before}\n{fenced.rstrip()}\n```\nBut no.") is None


@pytest.mark.parametrize(
    "text",
    [
        '{"passed": true, "comment": "fine",}',
        "{'passed': True, 'comment': 'fine'}",
        "{'passed': True, \"comment\": 'fine', 'hints': None,}",
        '{"passed": true, // well\n "comment": "fine" /* it\'s */}',
        '{"passed": true, # don\'t "worry"\n "comment": "fine"}',
        "{“passed”: true, “comment”: “fine”}",
        "{‘passed’: true, ’comment’: ‘fine’}",
        '{passed: true, comment: "fine"}',
    ],
)
def test_loose_notations_are_read(text: str):
    assert read(text) in (GOOD, {**GOOD, "hints": None})


@pytest.mark.parametrize("half", ["\\ud83d", "\\uDFFF", "\ud83d"])
def test_half_a_character_is_none(half: str):
    # a verdict with one ended the run with a traceback
    assert read(f'{{"a{half}": ["b {half}"], "c": "\\ud83d\\ude00"}}') == {"a?": ["b ?"], "c": "\U0001f600"}
    deep = "[" * 900 + "]" * 900
    read(f'{{"a": "{half}", "b": {deep}}}')


@given(json_values)
def test_a_value_of_any_kind_is_read(value: Any):
    text = json.dumps(value, ensure_ascii=False)
    assert read_value(f" {text}\n") == value
    assert read_value(f"It is:\n```json\n{text}\n```") == value


@pytest.mark.parametrize(
    "text", ["", "It is 42.", "42 it is", "1 2", "[1", "```json\n1\n```\nor 2", "1" * 300_000]
)
def test_words_are_no_value(text: str):
    with pytest.raises(UnreadableAnswer):
        read_value(text)


def test_what_a_string_holds_is_left_alone():
    comment = 'None of "True" // it\'s # “so” /* and’'
    assert read(f"{{'passed': True, \"comment\": {json.dumps(comment, ensure_ascii=False)}}}") == {
        "passed": True,
        "comment": comment,
    }
    assert read('{“comment”: “a "b"\nc”}') == {"comment": 'a "b"\nc'}
    assert read('{"passed": True, "comment": "one\ntwo"}') == {"passed": True, "comment": "one\ntwo"}


@pytest.mark.parametrize(
    "text",
    [
        '{"passed": true, "comm',
        '{"passed": true, "comment": "fine"',
        '{"passed": true, "comment": "fine',
        '{"passed": tr}',
        '{"passed": }',
        '{"passed": true "comment": "fine"}',
        '{"comment": "he said "fine"", "passed": true}',
        "{I would say true}",
        f"[{GOOD_JSON}]",
        GOOD_JSON + GOOD_JSON,
        GOOD_JSON + '{"passed": true, "comm',
        f"{{see: {GOOD_JSON}}}.",
        f"Yes: {GOOD_JSON}",
        f"{GOOD_JSON} I cannot pass this.",
        '{"passed": false, "quoted": ' + GOOD_JSON + ', "comm',
        json.dumps({"passed": False, "comment": f"It printed {GOOD_JSON}"})[:-2],
    ],
)
def test_nothing_is_made_up_or_picked_out(text: str):
    assert read(text) is None


def test_an_object_quoted_in_a_field_is_not_the_answer():
    quoting = {"passed": False, "comment": f"It printed </think>{GOOD_JSON}"}
    assert read(json.dumps(quoting), material=GOOD_JSON) == quoting


UNITS = [
    "{",
    '{"a":',
    '{"a":x',
    '{"a":[',
    "{ ",
    '"',
    '{"\\',
    '\\"',
    '{"a": /*',
    "{'a': “",
    "```{\n",
    GOOD_JSON,
    '{"a": ' + "9" * 5000,
    "4711{",
]


@pytest.mark.parametrize("frame", mostly_long(["{}", '{"a": {}}', "```\n{}", "{} 4711"]))
def test_long_hostile_text_is_read_in_bounded_time(frame: str):
    for unit in UNITS:
        text = frame.replace("{}", unit * (50_000 // len(unit)))
        started = time.process_time()
        read(text, material=text)
        assert time.process_time() - started < 2


def test_megabytes_are_refused():
    with pytest.raises(UnreadableAnswer, match="more than 200,000 characters"):
        read_object('{"a": "' + "x" * 3 * 2**20 + '"}')
