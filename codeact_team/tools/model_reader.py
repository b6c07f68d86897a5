"""Reads values that code has written into Pydantic models, whose cost is bounded before Pydantic sees them.

Pydantic tries every member of a union, so that a type that holds itself in a union costs twice as much with each level. And
whoever knows how Python hashes numbers writes values that a set or a mapping compares each with all others: 20,000 multiples of
2**61 - 1 take twenty seconds. Pydantic holds the interpreter's lock meanwhile, so no time limit helps.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from pydantic import BaseModel, JsonValue
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from codeact_team.tools.schemas import Schema, SchemaDocument, as_schema, subschemas

_MAX_TRIALS = 5_000_000
"""The most trials of values against types, and comparisons of values; so many take about a second."""

_UNCHOSEN = frozenset({"str", "literal", "enum", "bool", "none"})
"""Types whose values have hashes that code cannot choose, or of which there are few."""
_HASHED = "x-hashed"
"""Marks in a schema a list or a mapping whose members, or keys, are hashed by what code can choose."""
_LEAST_CHOSEN = 2**61 - 1
"""Python's hash of a number is the number modulo this."""
_MOST_DIGITS = 18

_Model = TypeVar("_Model", bound=BaseModel)


class _Marking(GenerateJsonSchema):
    """Writes schemas in which what is hashed is marked."""

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        return _marked(super().dict_schema(schema), schema.get("keys_schema"))

    def set_schema(self, schema: core_schema.SetSchema) -> JsonSchemaValue:
        return _marked(super().set_schema(schema), schema.get("items_schema"))

    def frozenset_schema(self, schema: core_schema.FrozenSetSchema) -> JsonSchemaValue:
        return _marked(super().frozenset_schema(schema), schema.get("items_schema"))


def _marked(written: JsonSchemaValue, hashed: core_schema.CoreSchema | None) -> JsonSchemaValue:
    return written if hashed is not None and hashed["type"] in _UNCHOSEN else {**written, _HASHED: True}


class ModelReader(Generic[_Model]):
    """Reads values into a model. They are nested at most :data:`~codeact_team.tools.schemas.MAX_DEPTH` levels deep.

    Args:
        model: The model.
        name: What the values are, in errors.

    Raises:
        pydantic.errors.PydanticUserError: If it has no JSON Schema.
    """

    def __init__(self, model: type[_Model], *, name: str = "arguments") -> None:
        self.model = model
        self._name = name
        self._parts = _Parts(SchemaDocument(model.model_json_schema(schema_generator=_Marking)))

    def read(self, value: JsonValue) -> _Model:
        """Read a value.

        Raises:
            pydantic.ValidationError: If it does not fit.
            ValueError: If it would take too long to find out.
        """
        self.require_bounded(value)
        return self.model.model_validate(value)

    def require_bounded(self, value: JsonValue) -> None:
        """Raise a ``ValueError`` if it would take too long to read a value."""
        if _Trials(self._parts).count(value, self._parts.root) > _MAX_TRIALS:
            raise ValueError(
                f"the {self._name} may fit in so many ways, or hold so many values of sets and keys of mappings, that reading "
                "it could take forever"
            )


class _Part:
    """A part of a schema, as far as it matters here."""

    def __init__(self, document: SchemaDocument, schema: Schema) -> None:
        reference = schema.get("$ref")
        self.all = [document.find(reference)] if isinstance(reference, str) else []
        alternatives = [
            part for keyword in ("anyOf", "oneOf", "allOf") for part in subschemas(schema, keyword)
        ]
        self.one: list[Schema] = []
        if "discriminator" in schema:
            self.one = alternatives
        else:
            self.all += alternatives
        self.first = [*subschemas(schema, "prefixItems")]
        self.items = as_schema(schema.get("items"))
        self.properties = {key: as_schema(part) for key, part in as_schema(schema.get("properties")).items()}
        patterns = as_schema(schema.get("patternProperties")).values()
        self.others = [as_schema(schema.get("additionalProperties")), *map(as_schema, patterns)]
        self.is_hashed = _HASHED in schema


class _Parts:
    """The parts of a schema, each read once."""

    def __init__(self, document: SchemaDocument) -> None:
        self.root = document.root
        self._document = document
        self._read: dict[int, _Part] = {}

    def of(self, schema: Schema) -> _Part:
        """Return the part that a schema of the document describes."""
        if (part := self._read.get(id(schema))) is None:
            part = self._read[id(schema)] = _Part(self._document, schema)
        return part


class _Trials:
    """Counts how often parts of a value are tried or compared, at most, in time that is linear in the value."""

    def __init__(self, parts: _Parts) -> None:
        self._parts = parts
        self._known: dict[tuple[int, int], int] = {}

    def count(self, value: JsonValue, schema: Schema) -> int:
        place = id(value), id(schema)
        if (known := self._known.get(place)) is not None:
            return known
        # a schema may refer to itself without a level of the value between
        self._known[place] = 0
        part = self._parts.of(schema)
        trials = 1 + sum(self.count(value, each) for each in part.all)
        if part.one:
            trials += max(self.count(value, each) for each in part.one)
        if isinstance(value, list):
            trials += self._of_list(value, part)
        elif isinstance(value, dict):
            trials += self._of_mapping(value, part)
        self._known[place] = trials
        return trials

    def _of_list(self, value: list[JsonValue], part: _Part) -> int:
        trials = sum(self.count(item, each) for item, each in zip(value, part.first, strict=False))
        trials += self._of_members(value[len(part.first) :], part.items)
        return trials + (_comparisons(value) if part.is_hashed else 0)

    def _of_mapping(self, value: dict[str, JsonValue], part: _Part) -> int:
        trials = sum(self.count(value[key], each) for key, each in part.properties.items() if key in value)
        others = [item for key, item in value.items() if key not in part.properties]
        trials += sum(self._of_members(others, each) for each in part.others)
        return trials + (_comparisons([*value]) if part.is_hashed else 0)

    def _of_members(self, members: list[JsonValue], schema: Schema) -> int:
        """Those that hold nothing all cost the same."""
        inner = [member for member in members if isinstance(member, list | dict)]
        plain = len(members) - len(inner)
        trials = plain * self.count(None, schema) if plain else 0
        return trials + sum(self.count(member, schema) for member in inner)


def _comparisons(values: list[JsonValue]) -> int:
    """Return the number of comparisons if all values whose hashes code can choose had the same hash."""
    chosen = sum(1 for value in values if _is_chosen(value))
    return chosen * chosen // 2


def _is_chosen(value: JsonValue) -> bool:
    if isinstance(value, str):
        # it may be read as a number or an identifier; a short number is its own hash
        return not (len(value) <= _MOST_DIGITS and value.isdecimal())
    if isinstance(value, int | float):
        return not -_LEAST_CHOSEN < value < _LEAST_CHOSEN
    return value is not None
