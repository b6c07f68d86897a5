from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeact_team.sessions.runner.interpreter.problems import Problem
from codeact_team.sessions.runner.interpreter.schemas import check

_ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "order": {"$ref": "#/$defs/Order"},
        "note": {"anyOf": [{"type": "string", "maxLength": 5}, {"type": "null"}]},
        "unit": {"enum": ["m", "km"]},
        "count": {"type": "integer", "minimum": 1, "exclusiveMaximum": 10},
    },
    "$defs": {
        "Order": {
            "type": "object",
            "properties": {"lines": {"type": "array", "items": {"$ref": "#/$defs/Line"}, "maxItems": 2}},
            "required": ["lines"],
            "additionalProperties": False,
        },
        "Line": {"type": "object", "properties": {"price": {"type": "number"}}},
    },
}


def problem(value: object, schema: object) -> tuple[type[Exception], str] | None:
    try:
        check(value, schema)
    except Problem as found:
        error = found.error("f", {})
        return type(error), str(error)
    return None


_UNFIT: list[tuple[Any, Any, str]] = [
    (
        {"order": {"lines": [{"price": 1}, {"price": "x"}]}},
        TypeError,
        "order.lines[1].price must be float, not str",
    ),
    ({"order": {}}, ValueError, "order must have the key 'lines'"),
    (
        {"order": {"lines": [], "line": 1}},
        ValueError,
        "order must not have the key 'line'; did you mean 'lines'?",
    ),
    ({"order": {"lines": [{}] * 3}}, ValueError, "order.lines must have at most 2 items, and has 3"),
    ({"note": 1}, TypeError, "note must be str or None, not int"),
    ({"note": "too long"}, ValueError, "note must have at most 5 characters, and has 8"),
    ({"unit": "mile"}, ValueError, "unit must be one of 'm', 'km', not 'mile'"),
    ({"count": True}, TypeError, "count must be int, not bool"),
    ({"count": 1.5}, TypeError, "count must be int, not float"),
    ({"count": 0}, ValueError, "count must be at least 1, not 0"),
    ({"count": 10}, ValueError, "count must be less than 10, not 10"),
]


@pytest.mark.parametrize(("arguments", "kind", "words"), _UNFIT)
def test_what_does_not_fit_is_told_with_its_place(
    arguments: dict[str, Any], kind: type[Exception], words: str
) -> None:
    assert problem(arguments, _ORDER) == (kind, f"f(): {words}")


@pytest.mark.parametrize(
    "arguments",
    [{}, {"order": {"lines": [{"price": 1}, {"price": 1.5, "more": 1}]}}, {"note": None}, {"count": 3.0}],
)
def test_what_fits_passes(arguments: dict[str, Any]) -> None:
    assert problem(arguments, _ORDER) is None


@pytest.mark.parametrize(
    ("value", "schema", "fits"),
    [
        (1, {"const": 1.0}, True),
        (1, {"const": True}, False),
        ([1, {"a": None}], {"enum": [[1.0, {"a": None}]]}, True),
        (
            [1, "a", None],
            {"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": {"type": "null"}},
            True,
        ),
        ([1, 2], {"prefixItems": [{"type": "integer"}], "items": False}, False),
        ([1, 2], {"items": [{"type": "integer"}], "additionalItems": False}, False),
        ({"a": 1}, {"additionalProperties": {"type": "string"}}, False),
        ({"x-a": 1}, {"patternProperties": {"^x-": {}}, "additionalProperties": False}, True),
        ("x", {"oneOf": [{"type": "integer"}, {"type": "null"}]}, False),
        ("x", {"oneOf": [{"pattern": "^x"}, {"pattern": "^y"}]}, True),
        (1, {"allOf": [{"minimum": 0}, {"maximum": 0}]}, False),
        ("x", {"format": "date", "unknown": 1}, True),
        (1, {"$ref": "https://example.org/schema"}, True),
        (1, {"$ref": "#/nowhere"}, True),
        (1, {"$ref": "#/a~1b/c%20d/0", "a/b": {"c d": [{"type": "string"}]}}, False),
        (None, {"type": ["string", "null"]}, True),
        ({}, {"minProperties": 1}, False),
        (1, False, False),
    ],
)
def test_keywords_mean_what_json_schema_says(value: object, schema: object, fits: bool) -> None:
    assert (problem(value, schema) is None) == fits


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {
            "oneOf": [{"$ref": "#/$defs/a"}],
            "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/a"}]}},
        },
    ],
)
def test_a_schema_that_refers_to_itself_without_end_lets_everything_pass(schema: object) -> None:
    assert problem([1], schema) is None


def test_recursive_schemas_are_followed_as_deep_as_the_value_goes() -> None:
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}}, "additionalProperties": False}
    value: dict[str, Any] = {"wrong": 1}
    for _ in range(90):
        value = {"next": value}
    assert problem(value, schema) == (ValueError, f"f(): next{'.next' * 89} must not have the key 'wrong'")


_SCALARS = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.5, 1.0, "", "a", "ab"])
_VALUES = st.recursive(
    _SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
_LEAVES = st.sampled_from(
    [
        {"type": "string"},
        {"type": "integer"},
        {"type": "number", "minimum": 0, "exclusiveMaximum": 2},
        {"type": ["boolean", "null"]},
        {"enum": ["a", 1, None, [0.5]]},
        {"const": 1},
        {"minLength": 1, "maxItems": 1, "maxProperties": 1},
        {"$ref": "#/$defs/list"},
        True,
        False,
    ]
)
_SCHEMAS = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.fixed_dictionaries({"items": inner}),
        st.fixed_dictionaries({"prefixItems": st.lists(inner, min_size=1, max_size=2), "items": inner}),
        st.fixed_dictionaries(
            {
                "type": st.just("object"),
                "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=2),
                "required": st.lists(st.sampled_from("abc"), max_size=1),
                "additionalProperties": inner,
            }
        ),
        *(
            st.fixed_dictionaries({keyword: st.lists(inner, min_size=1, max_size=3)})
            for keyword in ("anyOf", "allOf")
        ),
    ),
    max_leaves=6,
)


@given(_VALUES, _SCHEMAS)
def test_it_decides_as_the_reference_does(value: Any, schema: Any) -> None:
    root = {"allOf": [schema], "$defs": {"list": {"type": "array", "items": {"type": "integer"}}}}
    reference: Any = jsonschema.Draft202012Validator(root)
    assert (problem(value, root) is None) == reference.is_valid(value)
