"""Signatures and docstrings that are made of JSON schemas."""

from __future__ import annotations

import ast
import contextlib
import inspect
import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.schemas import Call, calls

from codeact_team.text.markdown import extract_code
from codeact_team.text.quoting import make_inert
from codeact_team.tools import declarations
from codeact_team.tools.declarations import MAX_DESCRIPTION, MAX_DOC, Declaration
from codeact_team.tools.schemas import Schema, SchemaChecker
from codeact_team.tools.sources import ListedTool


def declare(name: str, description: str, schema: Schema, *, returns: Schema | None = None) -> Declaration:
    return declarations.declare(name, ListedTool(name, description, schema, returns))


def of(*required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required)}


def annotation(schema: Any, **definitions: Any) -> str:
    declared = declare("f", "", {**of(value=schema), "$defs": definitions})
    return declared.parameters[0].annotation


def parsed(declaration: Declaration) -> ast.FunctionDef:
    """The stub, read as Python reads it."""
    source = (
        declaration.stub().replace("def tools.", "def ", 1).replace(f"def {declaration.name}", "def f", 1)
    )
    (function,) = ast.parse(source).body
    assert isinstance(function, ast.FunctionDef)
    return function


LINE: dict[str, Any] = {
    "type": "object",
    "title": "Line",
    "properties": {"sku": {"type": "string"}},
    "required": ["sku"],
}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "string"}, "str"),
        ({"type": "integer"}, "int"),
        ({"type": "number"}, "float"),
        ({"type": "boolean"}, "bool"),
        ({"type": "null"}, "None"),
        ({}, "Any"),
        (True, "Any"),
        ({"type": "array"}, "list[Any]"),
        ({"type": "array", "items": {"type": "integer"}}, "list[int]"),
        ({"items": {"type": "integer"}}, "list[int]"),
        ({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}]}, "list[str | int]"),
        ({"type": "object"}, "dict[str, Any]"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "dict[str, float]"),
        ({"type": "object", "patternProperties": {"^x": {"type": "number"}}}, "dict[str, float]"),
        ({"enum": ["a", "b"]}, "Literal['a', 'b']"),
        ({"enum": ["a", None]}, "Literal['a'] | None"),
        ({"enum": [f"value {n}" for n in range(100)]}, "str"),
        ({"const": 3}, "Literal[3]"),
        ({"const": {"a": 1}}, "Any"),
        ({"type": ["null", "string"]}, "str | None"),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, "str | None"),
        ({"oneOf": [{"type": "string"}, {"type": "string"}, {"type": "integer"}]}, "str | int"),
        ({"anyOf": [{"type": "string"}, {}]}, "Any"),
        ({"allOf": [{"description": "x"}, {"type": "integer"}]}, "int"),
        (LINE, "Line"),
        ({"type": "array", "items": LINE}, "list[Line]"),
        ({"type": "object", "additionalProperties": LINE}, "dict[str, Line]"),
        ({"allOf": [LINE, {"properties": {"count": {"type": "integer"}}}]}, "Value"),
        ({"type": "object", "title": "Any", "properties": {"a": {}}}, "Any2"),
        ({"type": "object", "title": "order line!", "properties": {"a": {}}}, "OrderLine"),
        ({"$ref": "#/$defs/Missing"}, "Any"),
        ({"type": "string", "anyOf": [{"format": "date"}, {"maxLength": 3}]}, "str"),
        ({"type": "object", "oneOf": [LINE, {"type": "null"}]}, "Line | None"),
        ({**LINE, "anyOf": [{"required": ["sku"]}, {"required": ["other"]}]}, "Line"),
    ],
)
def test_a_schema_becomes_an_annotation(schema: Any, expected: str) -> None:
    assert annotation(schema) == expected


def test_a_definition_is_called_by_its_title_or_its_name() -> None:
    untitled: dict[str, Any] = {"type": "object", "properties": {"a": {}}}
    assert annotation({"$ref": "#/$defs/shop__Line"}, shop__Line=LINE) == "Line"
    assert annotation({"$ref": "#/$defs/shop__Line"}, shop__Line=untitled) == "ShopLine"


def test_different_objects_of_the_same_title_get_different_names() -> None:
    other: dict[str, Any] = {**LINE, "properties": {"other": {}}}
    declared = declare("f", "", of(a=LINE, b=other))
    assert [parameter.annotation for parameter in declared.parameters] == ["Line", "Line2"]


def test_a_type_that_holds_itself_is_explained_once() -> None:
    tree: dict[str, Any] = {
        "type": "object",
        "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}}},
    }
    declared = declare("f", "", {**of("root", root={"$ref": "#/$defs/Tree"}), "$defs": {"Tree": tree}})
    assert declared.doc == "Tree is a dict:\n    children (list[Tree], optional)"


def test_references_that_only_lead_to_each_other_mean_anything() -> None:
    assert annotation({"$ref": "#/$defs/A"}, A={"$ref": "#/$defs/B"}, B={"$ref": "#/$defs/A"}) == "Any"
    assert (
        annotation({"$ref": "#/$defs/A"}, A={"anyOf": [{"$ref": "#/$defs/A"}, {"type": "string"}]}) == "Any"
    )


def test_required_parameters_come_first_and_what_had_to_move_is_given_by_name() -> None:
    declared = declare("f", "", of("b", "c", a={"default": 1}, b={}, c={}, d={"type": "string"}))
    assert [(one.name, one.required, one.keyword_only) for one in declared.parameters] == [
        ("b", True, False),
        ("c", True, False),
        ("d", False, False),
        ("a", False, True),
    ]
    assert ast.unparse(parsed(declared).args) == "b: Any, c: Any, d: str=..., *, a: Any=1"
    assert declared.line() == "tools.f(b, c, d=..., *, a=1)"


def test_names_that_python_cannot_use_are_mapped() -> None:
    declared = declare("f", "", of("class", **{"class": {}, "get-it": {}, "get_it": {}, "": {}}))
    assert {one.name: one.key for one in declared.parameters} == {
        "class_": "class",
        "get_it_2": "get-it",
        "get_it": "get_it",
        "arg": "",
    }


def test_a_required_key_that_is_not_described_is_a_parameter_too() -> None:
    assert declare("f", "", of("secret")).parameters[0].name == "secret"


def test_the_alternatives_of_the_arguments_as_a_whole_become_parameters() -> None:
    both: dict[str, Any] = {"anyOf": [of("id", "kind", id={}, kind={}), of("name", "kind", name={}, kind={})]}
    declared = declare("f", "", both)
    assert {one.name: one.required for one in declared.parameters} == {
        "kind": True,
        "id": False,
        "name": False,
    }


def test_the_arguments_as_a_whole_may_be_a_reference() -> None:
    declared = declare("f", "", {"$ref": "#/$defs/Args", "$defs": {"Args": of("a", a={"type": "integer"})}})
    assert declared.parameters[0].show() == "a: int"


def test_the_docstring_tells_what_the_signature_does_not() -> None:
    sizes = [f"size {number}" for number in range(30)]
    schema = of(
        "order",
        order={
            "type": "object",
            "title": "Order",
            "properties": {
                "lines": {"type": "array", "items": LINE, "minItems": 1},
                "note": {"default": "-"},
            },
            "required": ["lines"],
        },
        size={"type": "string", "enum": sizes, "description": "How large"},
        since={
            "anyOf": [{"type": "string", "format": "date"}, {"type": "null"}],
            "description": "The first\nday.",
        },
        plain={"type": "string", "description": "plain"},
    )
    declared = declare(
        "f", "Order.\n\nAt once.", schema, returns={"type": "array", "items": {**LINE}, "description": "All"}
    )
    assert declared.doc == (
        "Order.\n\nAt once.\n\n"
        f"Args:\n    size: How large. One of {', '.join(map(repr, sizes))}.\n"
        "    since: The first day. Format date.\n\n"
        "Returns:\n    All.\n\n"
        "Order is a dict:\n    lines (list[Line]): Minimum items 1.\n    note (Any, optional): Default: '-'.\n\n"
        "Line is a dict:\n    sku (str)"
    )
    assert declared.returns == "list[Line]"
    assert declared.summary == "Order."


def test_a_default_that_is_long_or_no_json_is_not_shown() -> None:
    schema = of(a={"default": "x" * 5000}, b={"default": float("nan")}, c={"default": None}, d={})
    assert [list(one.default) for one in declare("f", "", schema).parameters] == [[], [], [None], []]


def test_what_a_server_says_of_a_tool_is_bounded() -> None:
    many = {f"field{number}": {"type": "string", "description": "d" * 10_000} for number in range(100)}
    returns: dict[str, Any] = {"enum": ["v" * 1000] * 1000}
    declared = declare("f", "word " * 100_000, of(**many), returns=returns)
    assert len(declared.doc) <= MAX_DOC
    assert len(declare("f", "x" * 100_000, of()).doc) <= MAX_DESCRIPTION


def test_nothing_in_it_is_unseen() -> None:
    hidden = "\x1b[2J\x07\u202eabc\u200b\ud800\U000e0041"
    declared = declare("f", f"Search{hidden}.", of(a={"description": hidden, "title": hidden}))
    assert declared.doc == (
        r"Search␛[2J␇\u202eabc\u200b\ud800\U000e0041."
        "\n\nArgs:\n"
        r"    a: ␛[2J␇\u202eabc\u200b\ud800\U000e0041."
    )


def test_exponential_schemas_take_little_time() -> None:
    wide: dict[str, Any] = {f"T{n}": {"allOf": [{"$ref": f"#/$defs/T{n + 1}"}] * 3} for n in range(40)}
    wide |= {
        f"U{n}": {"anyOf": [{"$ref": f"#/$defs/U{n + 1}"}, {"items": {"$ref": f"#/$defs/U{n + 1}"}}]}
        for n in range(40)
    }
    declare("f", "", {**of(a={"$ref": "#/$defs/T0"}, b={"$ref": "#/$defs/U0"}), "$defs": wide})
    declare("f", "", {"$ref": "#/$defs/T0", "$defs": wide})


KEYWORDS = [
    "$ref",
    "type",
    "properties",
    "items",
    "anyOf",
    "allOf",
    "enum",
    "required",
    "title",
    "default",
    "format",
]
GARBAGE: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["#", "#/items", "object", "array", "string", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYWORDS), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(KEYWORDS), GARBAGE))
def test_the_schema_of_a_result_may_be_garbage(garbage: dict[str, Any]) -> None:
    declare("f", "", of(), returns=garbage)
    # of arguments it is noticed
    with contextlib.suppress(ValueError):
        SchemaChecker(garbage).check({"type": [1], "items": {"x": "x"}})


@given(calls())
def test_a_declaration_stands_for_its_schema(call: Call) -> None:
    declared = declare("shop.order", "Order.", call.schema)
    told = json.loads(json.dumps(declared.declare()))
    parameters: list[dict[str, Any]] = told["parameters"]
    properties = cast("dict[str, Any]", call.schema["properties"])
    assert {one["key"] for one in parameters} == set(properties)
    assert {one["key"] for one in parameters if one["required"]} == set(
        cast("list[str]", call.schema["required"])
    )
    kinds = inspect.Parameter
    signature = inspect.Signature(
        [
            inspect.Parameter(
                one["name"],
                kinds.KEYWORD_ONLY if one["keyword_only"] else kinds.POSITIONAL_OR_KEYWORD,
                default=kinds.empty if one["required"] else None,
            )
            for one in parameters
        ]
    )
    # the arguments come back by the names that code has for them
    keys = {one["name"]: one["key"] for one in parameters}
    names = {key: name for name, key in keys.items()}
    bound = signature.bind(**{names[key]: value for key, value in call.arguments.items()})
    assert {keys[name]: value for name, value in bound.arguments.items()} == call.arguments


@given(calls(), st.text() | st.text("\"'\\`~\n# x"), st.text("\"'\\`~\n x"))
def test_a_stub_is_one_function_whatever_a_server_says(call: Call, description: str, note: str) -> None:
    noted: dict[str, Any] = {"zz": {"description": note}}
    properties = {**cast("Schema", call.schema["properties"]), **noted}
    function = parsed(declare("f", description, {**call.schema, "properties": properties}))
    (body,) = function.body
    assert isinstance(body, ast.Expr)


@given(
    st.text("\"'\\`~\n x")
    | st.sampled_from(["```\n```python\nprint(1)\n```", "<execute>1</execute>", "~~~\n"])
)
def test_a_stub_stays_within_the_fence_around_it(description: str) -> None:
    stub = make_inert(declare("f", description, of()).stub())
    (block,) = extract_code(f"Tools:\n```python\n{stub}\n```\nThat is all.", ["python"]).blocks
    assert block.code.strip() == stub.strip()


@pytest.mark.parametrize(
    ("more", "takes_others"),
    [
        ({}, False),
        ({"additionalProperties": False}, False),
        ({"additionalProperties": {"type": "integer"}}, True),
        ({"patternProperties": {"^x": {}}, "additionalProperties": False}, True),
    ],
)
def test_only_a_schema_that_says_so_takes_other_keywords(more: dict[str, Any], takes_others: bool) -> None:
    assert declare("f", "", {**of(a={}), **more}).takes_others is takes_others
