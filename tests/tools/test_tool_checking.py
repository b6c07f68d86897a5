"""Arguments are checked on the host in bounded time, whatever they and the schema are."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from functools import reduce
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.schemas import Call, calls

from codeact_team.tools.schemas import MAX_DEPTH, SchemaChecker


def problem(schema: dict[str, Any], arguments: dict[str, Any]) -> str:
    with pytest.raises(ValueError) as raised:  # noqa: PT011 - the text is what is tested
        SchemaChecker(schema).check(arguments)
    return str(raised.value)


def fits(schema: dict[str, Any], arguments: dict[str, Any]) -> None:
    SchemaChecker(schema).check(arguments)


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


@given(calls())
def test_arguments_that_fit_are_accepted(call: Call) -> None:
    SchemaChecker(call.schema).check(call.arguments)


@given(
    st.dictionaries(st.text(max_size=5), st.recursive(st.none(), lambda x: st.lists(x), max_leaves=5)),
    calls(),
)
def test_arguments_of_any_kind_are_accepted_or_refused(arguments: dict[str, Any], call: Call) -> None:
    with contextlib.suppress(ValueError):
        SchemaChecker(call.schema).check(arguments)


def test_the_text_says_what_is_wrong_and_where() -> None:
    line: dict[str, Any] = {"type": "object", "properties": {"sku": {"type": "string"}}, "required": ["sku"]}
    schema = {**of(lines={"type": "array", "items": line}), "required": ["lines"]}
    assert problem(schema, {}) == 'arguments: "lines" is a required property (it is a mapping of 0)'
    assert problem(schema, {"lines": [{"sku": "a"}, {"sku": 3}]}) == (
        "arguments['lines'][1]['sku']: it is not of type \"string\" (it is 3)"
    )


def test_one_of_many_rows_that_does_not_fit_is_found() -> None:
    row = {"type": "object", "properties": {name: {"type": "integer"} for name in "abcd"}}
    rows = [dict.fromkeys("abcd", 1) for _ in range(1000)]
    rows[700] |= {"c": cast("int", "x")}
    assert problem(of(rows={"type": "array", "items": row}), {"rows": rows}).startswith(
        "arguments['rows'][700]['c']: it is not of type"
    )


def test_of_alternatives_the_text_says_why_none_fits() -> None:
    schema = of(note={"anyOf": [{"type": "string"}, {"type": "null"}]})
    assert problem(schema, {"note": 3}) == (
        'arguments[\'note\']: it is not of type "string" or it is not of type "null" (it is 3)'
    )


def test_the_text_is_bounded_whatever_was_passed() -> None:
    assert len(problem(of(note={"type": "integer"}), {"note": "x" * 1_000_000})) < 200
    assert len(problem({"additionalProperties": False}, {f"{n}" * 50: n for n in range(1000)})) < 1000
    assert len(problem(of(**{"k" * 5000: {"type": "null"}}), {"k" * 5000: 1})) < 200


def test_many_wrong_names_are_not_told_one_by_one() -> None:
    """The checker makes an error of each, which holds a copy of the whole mapping."""
    schema = of(parts={"type": "object", "propertyNames": {"enum": ["bolt", "gear"]}})
    assert '"bolt"' in problem(schema, {"parts": {"nut": 1, "pin": 2}})
    many = {f"x{n}": 1 for n in range(6000)}
    assert problem(schema, {"parts": many}) == "the arguments do not fit the tool's schema"


def test_many_missing_fields_are_not_told_one_by_one() -> None:
    row = {"type": "object", "required": [f"field{n}" for n in range(200)]}
    schema = of(rows={"type": "array", "items": row})
    assert '"field0" is a required property' in problem(schema, {"rows": [{}]})
    assert problem(schema, {"rows": [{}] * 1000}) == "the arguments do not fit the tool's schema"


def test_deep_arguments_are_refused() -> None:
    deep: Any = []
    for _ in range(MAX_DEPTH):
        deep = [deep]
    assert "nested" in problem(of(deep={}), {"deep": deep})


def test_a_type_that_holds_itself_is_checked_all_the_way_down() -> None:
    tree: dict[str, Any] = {
        "type": "object",
        "properties": {"left": {"$ref": "#/$defs/T"}, "name": {"type": "string"}},
    }
    schema = {**of(tree={"$ref": "#/$defs/T"}), "$defs": {"T": tree}}
    value: dict[str, Any] = {"name": 1}
    for _ in range(MAX_DEPTH - 5):
        value = {"left": value}
    assert problem(schema, {"tree": value}) == "the arguments do not fit the tool's schema"


def test_alternatives_that_hold_themselves_do_not_take_for_ever() -> None:
    def node(key: str) -> dict[str, Any]:
        return {"type": "object", "properties": {"next": {"$ref": "#/$defs/N"}}, "required": [key]}

    schema = {**of(start={"$ref": "#/$defs/N"}), "$defs": {"N": {"anyOf": [node("x"), node("y")]}}}
    value: dict[str, Any] = {"long": "x" * 1_000_000}
    for _ in range(40):
        value = {"next": value}
    assert problem(schema, {"start": value}) == "the arguments do not fit the tool's schema"


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(?=(a|aa)+$)(?!b).*$", r"^(a|a)*\1$"])
def test_a_slow_pattern_takes_little_time(pattern: str) -> None:
    slow = {"type": "string", "pattern": pattern}
    text = "a" * 5_000 + "!"
    problem(of(text=slow), {"text": text})
    problem({"patternProperties": {pattern: {}}, "additionalProperties": False}, {text: 1})


def test_a_format_is_left_to_the_tool() -> None:
    fits(of(text={"type": "string", "format": "date"}), {"text": "a"})


@pytest.mark.parametrize(
    ("schema", "wrong"),
    [
        ({"not": {"type": "string"}}, "a"),
        ({"if": {"type": "string"}, "then": {"maxLength": 0}}, "a"),
        ({"oneOf": [{"type": "string"}, {"type": "null"}]}, 1),
        ({"contains": {"type": "string"}}, [1]),
        ({"uniqueItems": True}, [{"a": 1}, {"a": 1.0}]),
        ({"items": {"type": "integer"}}, [1, "a"]),
        ({"prefixItems": [{"type": "string"}], "items": {"type": "integer"}}, ["a", "b"]),
        ({"items": {"type": "integer"}}, [True]),
        ({"multipleOf": 0.5}, 0.7),
        ({"type": "number"}, math.inf),
        ({"type": "number"}, math.nan),
        ({"type": "string", "pattern": "^b"}, "a"),
        ({"not": {"type": "string", "pattern": "^a"}}, "a"),
        ({"type": "object", "properties": {"pattern": {"type": "string"}}}, {"pattern": 1}),
        ({"dependentRequired": {"a": ["b"]}}, {"a": 1}),
        ({"enum": ["a", 1]}, True),
    ],
)
def test_all_else_is_checked(schema: dict[str, Any], wrong: Any) -> None:
    problem(of(value=schema), {"value": wrong})


def test_unlike_items_are_unique() -> None:
    fits(of(value={"uniqueItems": True}), {"value": [1, True, "1", [1], {"a": 1}, {"a": 2}, None, 0, False]})


def test_many_items_are_compared_without_comparing_each_with_each() -> None:
    items = [{"n": n} for n in range(30_000)]
    fits(of(value={"type": "array", "uniqueItems": True}), {"value": items})


def test_a_long_list_of_plain_values_is_no_problem() -> None:
    fits(of(value={"type": "array", "items": {"type": "number"}}), {"value": [1.5] * 300_000})


@pytest.mark.parametrize(
    "draft", ["http://json-schema.org/draft-07/schema#", "http://json-schema.org/draft-04/schema#"]
)
def test_the_dialect_is_the_one_that_the_schema_names(draft: str) -> None:
    # in later dialects this is no schema
    pair: Any = {
        "type": "array",
        "items": [{"type": "string"}, {"type": "integer"}],
        "additionalItems": False,
    }
    schema = {"$schema": draft, **of(pair=pair)}
    fits(schema, {"pair": ["a", 1]})
    assert "is not of type" in problem(schema, {"pair": [1, "a"]})


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (of(a={"$dynamicRef": "#node"}), r"\$dynamicRef is not supported"),
        (of(a={"type": "strin"}), r"schema\['properties'\]\['a'\]\['type'\]: it is not"),
        (of(a={"$ref": "#/$defs/Nowhere"}), "Nowhere"),
        (of(a={"$ref": "https://example.com/schema.json"}), "https://example.com/schema.json"),
        (of(a={"$ref": "file:///etc/passwd"}), "file:///etc/passwd"),
        ({**of(a={"$ref": "#/required"}), "required": ["a"]}, "required"),
        (of(a={"type": "string", "pattern": "("}), "pattern"),
        ({"type": "object", "required": "a"}, "required"),
    ],
)
def test_a_broken_schema_is_noticed_at_once(schema: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SchemaChecker(schema)


def test_a_schema_that_is_nested_too_deeply_is_broken() -> None:
    schema: Any = {"type": "string"}
    for _ in range(2000):
        schema = {"type": "array", "items": schema}
    with pytest.raises(ValueError, match="nested too deeply"):
        SchemaChecker(of(a=schema))


def test_a_reference_to_itself_says_nothing_of_a_value() -> None:
    fits({**of(a={"$ref": "#/$defs/A"}), "$defs": {"A": {"$ref": "#/$defs/A"}}}, {"a": 1})


def test_a_reference_to_what_is_no_schema_refuses() -> None:
    schema = of(a={"$ref": "#/properties"}, required={"type": "string"}, items={"type": "null"})
    assert problem(schema, {"a": {"b": [1]}})


def chain(part: Callable[[Any], dict[str, Any]], *, last: Any, length: int = 40) -> dict[str, Any]:
    """Definitions that lead from one to the next: ``part`` makes each of the reference to the next."""
    definitions = {f"D{n}": part({"$ref": f"#/$defs/D{n + 1}"}) for n in range(length)}
    return {"type": "object", "$ref": "#/$defs/D0", "$defs": {**definitions, f"D{length}": last}}


NAMED: dict[str, Any] = {
    f"D{n}": {"$id": f"https://a.example/D{n}", "allOf": [{"$ref": f"D{n + 1}"}] * 2} for n in range(40)
}
ANCHORED: dict[str, Any] = {
    f"D{n}": {"$anchor": f"a{n}", "allOf": [{"$ref": f"#a{n + 1}"}] * 2} for n in range(40)
}
NESTED: dict[str, Any] = reduce(
    lambda inner, _: {"allOf": [inner], "unevaluatedProperties": False}, range(40), dict[str, Any]()
)
UNFOLDING: dict[str, Any] = {
    "all": chain(lambda part: {"allOf": [part, part]}, last={"type": "object"}),
    "any": chain(lambda part: {"anyOf": [part, part]}, last={"type": "string"}),
    "if": chain(lambda part: {"if": part, "then": part, "else": part}, last={}),
    "dependent": chain(lambda part: {"dependentSchemas": {"a": part, "b": part}}, last={}),
    "inner": chain(
        lambda part: {"allOf": [{"properties": {"c": part}}, {"additionalProperties": part}]}, last={}
    ),
    "recursive": chain(
        lambda part: {"allOf": [part, part]}, last={"properties": {"c": {"$ref": "#/$defs/D0"}}}
    ),
    "named": {
        "$ref": "D0",
        "$id": "https://a.example/root",
        "$defs": {**NAMED, "D40": {"$id": "https://a.example/D40"}},
    },
    "anchored": {"$ref": "#a0", "$defs": {**ANCHORED, "D40": {"$anchor": "a40"}}},
    "long": chain(lambda part: {"properties": {"c": part}}, last={}, length=5_000),
    "unevaluated": NESTED,
}


@pytest.mark.parametrize("schema", UNFOLDING.values(), ids=list(UNFOLDING))
def test_a_schema_that_unfolds_without_end_is_refused_at_once(schema: dict[str, Any]) -> None:
    # such a check never returned
    with pytest.raises(ValueError, match="refer to each other so often"):
        SchemaChecker(schema)


def test_parts_that_are_used_often_but_not_for_the_same_value_are_no_problem() -> None:
    # a grid of types, each of whose fields is of the next type: three to the 40th places, none of which is checked twice
    schema = chain(lambda part: {"type": "object", "properties": {"a": part, "b": part, "c": part}}, last={})
    fits(schema, {"a": {"b": {"c": {"a": {}}}}})
    assert "is not of type" in problem(schema, {"a": {"b": {"c": 1}}})


def test_a_large_union_that_holds_itself_is_no_problem() -> None:
    def kind(name: str) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "children": {"type": "array", "items": {"$ref": "#/$defs/Part"}},
            "kind": {"const": name},
        }
        return {"type": "object", "properties": fields, "required": ["kind"]}

    schema = {
        **of(page={"$ref": "#/$defs/Part"}),
        "$defs": {"Part": {"anyOf": [kind(f"K{n}") for n in range(30)]}},
    }
    page: dict[str, Any] = {"kind": "K29"}
    for _ in range(25):
        page = {"kind": "K29", "children": [page, {"kind": "K3"}]}
    fits(schema, {"page": page})
    assert problem(schema, {"page": {**page, "kind": "K30"}}) == "the arguments do not fit the tool's schema"


def test_more_values_than_can_be_checked_are_refused() -> None:
    wide: dict[str, Any] = {"type": "array", "items": {"allOf": [{"type": "integer"}] * 5_000}}
    fits(of(numbers=wide), {"numbers": [1] * 500})
    assert "too many to be checked" in problem(of(numbers=wide), {"numbers": [1] * 10_000})
