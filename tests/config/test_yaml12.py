from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.variations import mostly_long

from codeact_team.config import yaml12
from codeact_team.config.yaml12 import YamlError

TEXT = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"])),
    st.text("ab \n\t\r:#-'\"{}[]&*!|>%@`,?$~\x85\u2028\ufeff0.", max_size=30),
    st.sampled_from(
        ["yes", "null", "~", "1", "0x1", "1e3", ".nan", "2024-01-01", "=", "<<", "---", "012", "1_0"]
    ),
)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**1000), 2**1000), st.floats(allow_nan=False), TEXT
)
DATA = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=15,
)


@given(DATA)
def test_written_data_reads_back_as_the_same(data: Any) -> None:
    assert yaml12.parse(yaml12.write(data))[0] == data


@given(DATA, st.sampled_from([None, 2, "\t"]))
def test_json_reads_as_json_does(data: Any, indent: int | str | None) -> None:
    text = json.dumps(data, indent=indent)
    # JSON has no infinities, and the one control character that JSON takes as it is, YAML does not
    assume("Infinity" not in text)
    assume("\x7f" not in text)
    assert yaml12.parse(text)[0] == json.loads(text)


@pytest.mark.parametrize("text", ['{"a"\n: 1}', json.dumps({"é" * 2000: {"b" * 2000: [1]}}, indent=1)])
def test_json_keys_may_be_long_and_have_their_colon_on_a_later_line(text: str) -> None:
    assert yaml12.parse(text)[0] == json.loads(text)


@given(st.text() | st.text("ab \n\t:#-'\"{}[]&*!|>%@`,?$~01.<", max_size=40))
def test_any_text_is_data_or_a_yaml_error(text: str) -> None:
    for read in (yaml12.parse, yaml12.parse_value):
        with suppress(YamlError):
            read(text)


def test_scalars_are_those_of_yaml_1_2() -> None:
    text = "a: yes\nb: 0o17\nc: 0x1f\nd: 012\ne: 1e3\nf: ~\ng: 2024-01-01\nh: -.inf\ni: 'true'\nj: True\nk: 1_000\nl: =\n"
    assert yaml12.parse(text)[0] == {
        "a": "yes",
        "b": 15,
        "c": 31,
        "d": 12,
        "e": 1000.0,
        "f": None,
        "g": "2024-01-01",
        "h": float("-inf"),
        "i": "true",
        "j": True,
        "k": 1000,
        "l": "=",
    }


def test_json_escapes_and_tabs_are_read() -> None:
    assert yaml12.parse('{\n\t"a": "\\ud83d\\ude00\\/",\n\t"b": [\n\t\t1\n\t]\n}')[0] == {
        "a": "\U0001f600/",
        "b": [1],
    }


def test_every_value_has_its_line() -> None:
    lines = yaml12.parse("a: 1\nb:\n  - x\n  - c: |\n      long\n\n    d: 2\n")[1].lines
    assert lines == {
        (): 1,
        ("a",): 1,
        ("b",): 2,
        ("b", 0): 3,
        ("b", 1): 4,
        ("b", 1, "c"): 4,
        ("b", 1, "d"): 7,
    }


def test_aliases_are_expanded() -> None:
    assert yaml12.parse("a: &x {k: [1]}\nb: *x\n")[0] == {"a": {"k": [1]}, "b": {"k": [1]}}
    assert yaml12.parse("[&x 1, *x, &x 2, *x]")[0] == [1, 1, 2, 2]


def doubled(first: str, *, levels: int = 30) -> str:
    """A YAML of a few hundred bytes in which each level has the one before it twice."""
    return "\n".join([f"v0: &v0 {first}", *(f"v{n}: &v{n} [*v{n - 1}, *v{n - 1}]" for n in range(1, levels))])


@pytest.mark.parametrize(
    ("text", "message"),
    mostly_long(
        [
            (doubled("[x]"), "more than 10000 keys and values, with aliases expanded"),
            (doubled("{x: y}"), "more than 10000 keys and values, with aliases expanded"),
            (doubled("x" * 1000, levels=14), "longer than 1048576 characters, with aliases expanded"),
            ("a: 1\n" + "b: &b [" + "x, " * 20_000 + "]", "more than 10000 keys and values"),
            (json.dumps({f"k{number}": 1 for number in range(20_000)}), "more than 10000 keys and values"),
            (json.dumps({"a": "x" * (1 << 20)}), "longer than 1048576 characters"),
            ("[" * 100_000, "nested more than 100 deep"),
            ("{a: " * 100_000, "nested more than 100 deep"),
            ("!" * 100_000, "a tag is longer"),
        ],
        usual=3,
    ),
)
def test_what_is_too_large_is_refused_before_it_is_made(text: str, message: str) -> None:
    began = time.process_time()
    with pytest.raises(YamlError, match=message):
        yaml12.parse(text)
    # it took no answer in a minute
    assert time.process_time() - began < 10


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a: 1\nb: [", 2, "not YAML"),
        ("a: 1\n\tb: 2", 2, "tab"),
        ("a: 1\nb: 2\na: 3", 3, "has the key 'a' twice"),
        ("a: {b: 1, 'b': 2}", 1, "has the key 'b' twice"),
        ("a: 1\n1: 2", 2, "'1' is not text; put it in quotes"),
        ("a: 1\n~: 2", 2, "not text"),
        ("a: 1\n? [x]\n: 2", 2, "a key has to be text"),
        ("a: 1\n<<: {b: 2}", 2, "merge keys"),
        ("a: 1\n---\nb: 2", 2, "more than one document"),
        ("a: 1\nb: !!python/object/apply:os.system [id]", 2, "tag"),
        ("a: 1\nb: !!binary aGk=", 2, "tag '!!binary'"),
        ("a: !mine 1", 1, "tag '!mine'"),
        ("a: !mine {}", 1, "tag '!mine'"),
        ("a: *x", 1, "undefined alias"),
        ("a: 1\nb: &x [*x]", 2, "an alias points to a value that contains it"),
        ("a: 1\nb: \x00", 2, "'\\x00' is not allowed"),
        ('a: "\\ud800"', 1, "cannot be read"),
        ('a: "\\U00110000"', None, "not YAML"),
        ("a: " + "9" * 5000, 1, "cannot be read"),
        ("%YAML 1.1\n---\na: yes", 1, "only YAML 1.2"),
        ("- " * 10_000, 1, "nested more than 100 deep"),
        ("a: !" + "x" * 1000, 1, "a tag is longer"),
    ],
)
def test_bad_yaml_says_what_and_where(text: str, line: int | None, message: str) -> None:
    with pytest.raises(YamlError) as caught:
        yaml12.parse(text)
    assert message in caught.value.message
    assert caught.value.line == line


def test_a_duplicate_key_is_found_in_json() -> None:
    with pytest.raises(YamlError, match="has the key"):
        yaml12.parse('{"a": 1, "b": {"c": 1, "c": 2}}')


def test_values_are_scalars_or_in_flow_style() -> None:
    assert yaml12.parse_value("3") == 3
    assert yaml12.parse_value("") is None
    assert yaml12.parse_value("'3'") == "3"
    assert yaml12.parse_value("[1, {a: b}]") == [1, {"a": "b"}]
    assert yaml12.parse_value("Note: be brief") == "Note: be brief"
    assert yaml12.parse_value("- x") == "- x"


def test_text_of_several_lines_is_written_as_a_block() -> None:
    assert yaml12.write({"a": "x\n  y\n", "b": [{"c": 1}]}) == "a: |\n  x\n    y\nb:\n  - c: 1\n"
