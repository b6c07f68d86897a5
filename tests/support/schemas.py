"""Random JSON schemas of a tool's arguments, each with arguments that fit it."""

from __future__ import annotations

import string
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from pydantic import JsonValue

Schema = dict[str, JsonValue]

MAX_NESTING = 3

KEYS = st.one_of(
    st.text(string.ascii_lowercase + "_", min_size=1, max_size=8),
    st.sampled_from(
        ["class", "None", "get-order", "größe", "3d", "a b", "", "self", "key", "pattern", "$ref", "type"]
    ),
    st.text(max_size=5),
)
"""Names of fields: such as they should be, such as they may be, and anything."""


@dataclass(frozen=True)
class Call:
    """A schema, and arguments that fit it."""

    schema: Schema
    arguments: dict[str, JsonValue]


@dataclass
class _Definitions:
    schemas: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])


@dataclass(frozen=True)
class _Typed:
    schema: JsonValue
    values: SearchStrategy[JsonValue]


@st.composite
def calls(draw: DrawFn, *, keys: SearchStrategy[str] = KEYS) -> Call:
    """Schemas of objects with arguments that fit.

    Args:
        draw: Hypothesis's.
        keys: Names of fields.
    """
    definitions = _Definitions()
    arguments = draw(_objects(definitions, keys, MAX_NESTING))
    assert isinstance(arguments.schema, dict)
    schema = {**arguments.schema}
    if definitions.schemas:
        schema["$defs"] = definitions.schemas
    value = draw(arguments.values)
    assert isinstance(value, dict)
    return Call(schema, value)


def _typed(definitions: _Definitions, keys: SearchStrategy[str], depth: int) -> SearchStrategy[_Typed]:
    plain = [_strings(), _integers(), _numbers(), _listed(), st.sampled_from(_FIXED)]
    if depth == 0:
        return st.one_of(plain)
    return st.one_of(
        *plain,
        _lists(definitions, keys, depth - 1),
        _objects(definitions, keys, depth - 1),
        _dictionaries(definitions, keys, depth - 1),
        _alternatives(definitions, keys, depth - 1),
        _defined(definitions, keys, depth - 1),
        _trees(definitions),
    )


_ANYTHING: SearchStrategy[JsonValue] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
_FIXED = [
    _Typed({"type": "boolean"}, st.booleans()),
    _Typed({"type": "null"}, st.none()),
    _Typed({}, _ANYTHING),
    _Typed(True, _ANYTHING),
    _Typed({"type": ["string", "null"]}, st.none() | st.text(max_size=5)),
    _Typed({"type": "string", "pattern": "^(a+)+$", "format": "date"}, st.just("aa")),
]


@st.composite
def _strings(draw: DrawFn) -> _Typed:
    least = draw(st.integers(0, 3))
    return _Typed({"type": "string", "minLength": least}, st.text(min_size=least, max_size=10))


@st.composite
def _integers(draw: DrawFn) -> _Typed:
    low, high = sorted([draw(st.integers(-(2**70), 2**70)), draw(st.integers(-(2**70), 2**70))])
    return _Typed({"type": "integer", "minimum": low, "maximum": high}, st.integers(low, high))


@st.composite
def _numbers(draw: DrawFn) -> _Typed:
    finite = st.floats(allow_nan=False, allow_infinity=False)
    schema: Schema = {"type": "number"}
    if draw(st.booleans()):
        schema["description"] = draw(st.text(max_size=20))
    return _Typed(schema, finite | st.integers(-(2**60), 2**60))


@st.composite
def _listed(draw: DrawFn) -> _Typed:
    values = draw(
        st.lists(st.text(max_size=6) | st.integers() | st.none(), min_size=1, max_size=20, unique=True)
    )
    schema: Schema = {"const": values[0]} if draw(st.booleans()) else {"enum": list[JsonValue](values)}
    return _Typed(schema, st.just(values[0]) if "const" in schema else st.sampled_from(values))


@st.composite
def _lists(draw: DrawFn, definitions: _Definitions, keys: SearchStrategy[str], depth: int) -> _Typed:
    item = draw(_typed(definitions, keys, depth))
    least = draw(st.integers(0, 2))
    schema: Schema = {"type": "array", "items": item.schema, "minItems": least}
    return _Typed(schema, st.lists(item.values, min_size=least, max_size=least + 2))


@st.composite
def _objects(draw: DrawFn, definitions: _Definitions, keys: SearchStrategy[str], depth: int) -> _Typed:
    names = draw(st.lists(keys, max_size=4, unique=True))
    fields = {name: draw(_typed(definitions, keys, depth)) for name in names}
    required = [name for name in names if draw(st.booleans())]
    schema: Schema = {
        "type": "object",
        "properties": {name: typed.schema for name, typed in fields.items()},
        "required": list[JsonValue](required),
        "additionalProperties": False,
    }
    if draw(st.booleans()):
        schema["title"] = draw(st.text(max_size=8) | st.sampled_from(["Line", "Any", "str"]))
    values = st.fixed_dictionaries(
        {name: fields[name].values for name in required},
        optional={name: fields[name].values for name in names if name not in required},
    )
    return _Typed(schema, values)


@st.composite
def _dictionaries(draw: DrawFn, definitions: _Definitions, keys: SearchStrategy[str], depth: int) -> _Typed:
    value = draw(_typed(definitions, keys, depth))
    schema: Schema = {"type": "object", "additionalProperties": value.schema}
    return _Typed(schema, st.dictionaries(keys, value.values, max_size=2))


@st.composite
def _alternatives(draw: DrawFn, definitions: _Definitions, keys: SearchStrategy[str], depth: int) -> _Typed:
    options = draw(st.lists(_typed(definitions, keys, depth), min_size=1, max_size=3))
    return _Typed(
        {"anyOf": [option.schema for option in options]}, st.one_of([one.values for one in options])
    )


@st.composite
def _defined(draw: DrawFn, definitions: _Definitions, keys: SearchStrategy[str], depth: int) -> _Typed:
    defined = draw(_typed(definitions, keys, depth))
    name = f"Type{len(definitions.schemas)}"
    definitions.schemas[name] = defined.schema
    return _Typed({"$ref": f"#/$defs/{name}"}, defined.values)


@st.composite
def _trees(draw: DrawFn, definitions: _Definitions) -> _Typed:
    """A type that holds itself."""
    name = f"Type{len(definitions.schemas)}"
    definitions.schemas[name] = {
        "type": "object",
        "title": draw(st.sampled_from(["Tree", "Node"])),
        "properties": {
            "name": {"type": "string"},
            "children": {"type": "array", "items": {"$ref": f"#/$defs/{name}"}},
        },
        "required": ["name"],
    }
    text: SearchStrategy[JsonValue] = st.text(max_size=3)
    leaf = _named(text, {})
    values = st.recursive(leaf, lambda inner: _parents(text, inner), max_leaves=4)
    return _Typed({"$ref": f"#/$defs/{name}"}, values)


def _parents(text: SearchStrategy[JsonValue], inner: SearchStrategy[JsonValue]) -> SearchStrategy[JsonValue]:
    children: SearchStrategy[JsonValue] = st.lists(inner, max_size=2)
    return _named(text, {"children": children})


def _named(
    text: SearchStrategy[JsonValue], fields: dict[str, SearchStrategy[JsonValue]]
) -> SearchStrategy[JsonValue]:
    return st.fixed_dictionaries({"name": text, **fields})
