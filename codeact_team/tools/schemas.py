"""JSON Schemas that somebody else wrote: their fields and references, and checks of values at bounded cost."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple, cast
from urllib.parse import unquote

import jsonschema_rs
from pydantic import JsonValue

from codeact_team.text.visibility import clean, cut

Schema = Mapping[str, JsonValue]

ANYTHING: Schema = {}
"""The schema of a value that may be anything."""

_MOST_REFERENCES = 20


def as_schema(value: object) -> Schema:
    """Return ``value`` if it is a schema that restricts something, else :data:`ANYTHING`."""
    return cast("Schema", value) if isinstance(value, Mapping) else ANYTHING


def subschemas(schema: Schema, keyword: str) -> Iterator[Schema]:
    """Yield the schemas in the list under ``keyword``."""
    listed = schema.get(keyword)
    return map(as_schema, listed) if isinstance(listed, list) else iter(())


@dataclass
class Fields:
    """The fields of an object: their schemas by their keys, and the keys of those that are required."""

    schemas: dict[str, Schema] = field(default_factory=dict[str, Schema])
    required: set[str] = field(default_factory=set[str])

    def add(self, more: Fields) -> None:
        """Add fields; of one that is there already, the keywords are merged."""
        for key, schema in more.schemas.items():
            self.schemas[key] = {**self.schemas[key], **schema} if key in self.schemas else schema
        self.required |= more.required


class SchemaDocument:
    """A JSON Schema, checked against its meta-schema, with its definitions."""

    def __init__(self, root: Schema) -> None:
        self.root = root

    def resolve(self, schema: Schema) -> Schema:
        """Follow the references of ``schema``. Its own keywords win over its target's."""
        for _ in range(_MOST_REFERENCES):
            if not isinstance(reference := schema.get("$ref"), str):
                return schema
            target = self.find(reference)
            schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
        return ANYTHING

    def find(self, reference: str) -> Schema:
        """Return the schema at ``#/like/this``, or :data:`ANYTHING` if there is none."""
        return as_schema(self.locate(reference))

    def locate(self, reference: str) -> JsonValue:
        """Return the value at ``#/like/this``; ``None`` if there is none."""
        pointer = unquote(reference)
        found: JsonValue = cast("JsonValue", self.root)
        if pointer == "#":
            return found
        if not pointer.startswith("#/"):
            return None
        for part in pointer[2:].split("/"):
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(found, list):
                found = found[int(key)] if key.isdecimal() and int(key) < len(found) else None
            else:
                found = cast("Schema", found).get(key) if isinstance(found, Mapping) else None
        return found

    def fields_of(self, schema: Schema) -> Fields:
        """Collect the fields of an object of this schema, including the fields of all alternatives."""
        return self._fields_of(schema, set())

    def _fields_of(self, schema: Schema, seen: set[str]) -> Fields:
        fields = Fields()
        reference = schema.get("$ref")
        # once: references that lead to each other in pairs would double the work with each step
        if isinstance(reference, str) and reference not in seen:
            seen.add(reference)
            fields.add(self._fields_of(self.find(reference), seen))
        for part in subschemas(schema, "allOf"):
            fields.add(self._fields_of(part, seen))
        for keyword in ("anyOf", "oneOf"):
            if alternatives := [self._fields_of(part, seen) for part in subschemas(schema, keyword)]:
                in_all = set[str].intersection(*(one.required for one in alternatives))
                for one in alternatives:
                    fields.add(Fields(one.schemas, in_all))
        properties, required = as_schema(schema.get("properties")), schema.get("required")
        fields.add(
            Fields(
                {key: as_schema(value) for key, value in properties.items()},
                {key for key in required if isinstance(key, str)} if isinstance(required, list) else set(),
            )
        )
        return fields

    def has_fields(self, schema: Schema) -> bool:
        """Whether this is the schema of an object whose fields are known."""
        parts = (schema, *subschemas(schema, "allOf"))
        return any(isinstance(self.resolve(part).get("properties"), Mapping) for part in parts)


_MAX_CHECKS = 100_000
"""The most checks of one value against parts of a schema."""

_DEEPEST_SCHEMA = 250
_UNDER_WAY = 0
_TOO_MANY = (
    "its parts refer to each other so often that checking could take forever; write it with fewer references "
    "in allOf, anyOf, oneOf and the like"
)
_Order = Callable[[list[Any]], Iterator[Any]]
_REPEATED = frozenset({"unevaluatedProperties", "unevaluatedItems"})
_INNER = {"additionalItems", "additionalProperties", "contains", "items", "propertyNames"}
_SINGLE = _REPEATED | _INNER | {"not", "if", "then", "else"}
_EITHER = frozenset({"properties", "prefixItems", "items"})
_LISTED = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas", "dependencies"})
_UNBOUNDED = ("$dynamicRef", "$recursiveRef")
_NAMING = ("$id", "id", "$anchor", "$dynamicAnchor")
_META_SCHEMAS = ("http://json-schema.org/", "https://json-schema.org/")
"""The checker has these built in, and they are harmless."""


class _Expansion:
    """Counts the checks that a value may need, whatever the value.

    The checker remembers checks only where a schema refers to itself. It follows every other reference anew, so forty
    definitions, each of which refers to the next one twice, mean 2 to the 40th checks.

    Attributes:
        checks: How often one value is checked at most.
        is_recursive: Whether a part contains itself.

    Raises:
        ValueError: If there are more than :data:`_MAX_CHECKS`, or the schema refers to a place that it does not have.
    """

    def __init__(self, schema: Schema) -> None:
        self._root = schema
        self._looked_at = 0
        self.is_recursive = False
        self.checks = self._count(schema, 0, iter, {})
        if self.is_recursive:
            # which reference closes a circle depends on the part that one begins with
            self.checks = max(self.checks, self._count(schema, 0, reversed, {}))

    def _count(self, schema: Schema, depth: int, order: _Order, known: dict[int, int]) -> int:
        """Count the checks of one value against a part, and against everything that the part refers to."""
        if (checks := known.get(id(schema))) is not None:
            self.is_recursive = self.is_recursive or checks == _UNDER_WAY
            return checks
        known[id(schema)] = _UNDER_WAY
        checks = 1
        for parts in order(list(_parts(schema, self._targets(schema)))):
            if depth == _DEEPEST_SCHEMA:
                raise ValueError(_TOO_MANY)
            checks += max(
                (self._count(part, depth + 1, order, known) or 1 for part in order(parts)), default=0
            )
        if not _REPEATED.isdisjoint(schema):
            # the checker finds out what is evaluated by evaluating it again
            checks *= 3
        if checks > _MAX_CHECKS:
            raise ValueError(_TOO_MANY)
        known[id(schema)] = checks
        return checks

    def _targets(self, schema: Schema) -> list[Schema]:
        """Find the target of a schema's reference, or all possible targets where that is not certain."""
        if unbounded := next((keyword for keyword in _UNBOUNDED if keyword in schema), None):
            raise ValueError(f"{unbounded} is not supported; use $ref")
        if not isinstance(reference := schema.get("$ref"), str):
            return []
        targets = [as_schema(target) for target in self._candidates(reference) if target is not None]
        if not targets and not reference.startswith(_META_SCHEMAS):
            raise ValueError(f"it refers to {cut(reference, 100)!r}, which it does not contain")
        return targets

    def _candidates(self, reference: str) -> Iterator[JsonValue]:
        name, _, fragment = reference.partition("#")
        ending = name.rpartition("/")[2]
        for part in [self._root, *self._named]:
            self._looked_at += 1
            if self._looked_at > _MAX_CHECKS:
                raise ValueError(_TOO_MANY)
            if fragment and not fragment.startswith("/"):
                if fragment in [str(part.get(naming)).removeprefix("#") for naming in _NAMING]:
                    yield cast("JsonValue", part)
            elif "%" in name or any(ending in str(part.get(naming, "")) for naming in ("$id", "id")):
                yield SchemaDocument(part).locate(f"#{fragment}")

    @cached_property
    def _named(self) -> list[Schema]:
        """The parts that have a name of their own."""
        level: list[JsonValue] = [cast("JsonValue", self._root)]
        found: list[Schema] = []
        while level:
            found += [
                item
                for item in level
                if isinstance(item, dict) and any(isinstance(item.get(naming), str) for naming in _NAMING)
            ]
            level = [inner for item in level for inner in _inside(item)]
        return found


def _parts(schema: Schema, targets: list[Schema]) -> Iterator[list[Schema]]:
    """Yield the parts of a schema in groups. A value is checked against at most one part of a group."""
    for target in targets:
        yield [target]
    for keyword, value in schema.items():
        parts: Iterator[object] = iter(())
        if isinstance(value, dict):
            parts = iter((value,) if keyword in _SINGLE else value.values() if keyword in _NAMED else ())
        elif isinstance(value, list) and keyword in _LISTED:
            parts = iter(value)
        schemas = [as_schema(part) for part in parts]
        if keyword in _EITHER:
            yield schemas
        else:
            yield from ([part] for part in schemas)


MAX_DEPTH = 64
"""The most levels of nesting of a checked value."""

_MAX_WORK = 20_000_000
"""The most checks of single values that one value may need; so many take about a second."""

_MAX_BACKTRACKING = 100_000
_MAX_EXPLAINED_WORK = 100_000
"""Up to how many checks the error says what does not fit, which takes much longer than to know that it does not: about
a second where nothing fits."""
_MAX_PROBLEMS = 3
_MAX_PROBLEM = 600
_MAX_VALUE = 60
_MAX_PATH = 8
_MASK = "it"


class SchemaChecker:
    """Checks values against a schema at bounded cost, without reading anything else.

    ``name`` and ``schema_name`` are the names of a value and of the schema in errors.

    Raises:
        ValueError: If the schema is broken, or refers to a place that it does not have.
    """

    def __init__(
        self, schema: Schema, *, name: str = "arguments", schema_name: str = "the tool's schema"
    ) -> None:
        self._name, self._schema_name = name, schema_name
        self._is, self._holds, self._does = (
            ("are", "hold", "do") if name.endswith("s") else ("is", "holds", "does")
        )
        if _measure(schema, 10 * MAX_DEPTH) is None:
            raise ValueError("it is nested too deeply")
        self._expansion = _Expansion(schema)
        keywords = [*_keywords(schema)]
        self._required = sum(
            len(value) for name, value in keywords if name == "required" and isinstance(value, list)
        )
        self._names_are_checked = any(name == "propertyNames" for name, _ in keywords)
        try:
            self._validator = jsonschema_rs.validator_for(
                dict(schema),
                offline=True,
                validate_formats=False,
                pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=_MAX_BACKTRACKING),
                mask=_MASK,
            )
        except jsonschema_rs.ValidationError as error:
            raise ValueError(f"{_where(error.instance_path, 'schema')}: {_refusal(error)}") from None
        except jsonschema_rs.ReferencingError as error:
            raise ValueError(clean(str(error), _MAX_PROBLEM)) from None

    def check(self, value: JsonValue) -> None:
        """Check a value; a ``ValueError`` says what does not fit and where, or why it cannot be checked."""
        size = _measure(value, MAX_DEPTH)
        if size is None:
            raise ValueError(
                f"the {self._name} {self._is} nested too deeply; {MAX_DEPTH} levels are possible"
            )
        if size.values * self._expansion.checks > _MAX_WORK:
            raise ValueError(
                f"the {self._name} {self._holds} {size.values:,} values, too many to be checked against "
                f"{self._schema_name}"
            )
        try:
            if self._validator.is_valid(value):
                return
        except (ValueError, jsonschema_rs.ValidationError) as error:
            # such as half a character
            raise ValueError(
                f"the {self._name} cannot be checked: {clean(str(error), _MAX_PROBLEM)}"
            ) from None
        # the iteration over errors, unlike the check, remembers nothing in a recursion
        levels = size.depth if self._expansion.is_recursive else 1
        # each error holds a copy of what it is about; each name that does not fit makes one about the whole mapping
        copies = self._required * size.depth + (size.most if self._names_are_checked else 0)
        if size.values * (self._expansion.checks**levels + copies) > _MAX_EXPLAINED_WORK:
            raise ValueError(f"the {self._name} {self._does} not fit {self._schema_name}")
        errors = islice(self._validator.iter_errors(value), _MAX_PROBLEMS)
        raise ValueError(
            "; ".join(f"{_where(error.instance_path, self._name)}: {_refusal(error)}" for error in errors)
        )


class _Size(NamedTuple):
    """Size of a value: its levels of nesting, the number of values in it, and the largest number in one part of it."""

    depth: int
    values: int
    most: int


def _measure(value: JsonValue | Schema, most: int) -> _Size | None:
    """Measure a value; ``None`` if it is nested more than ``most`` levels deep."""
    level: list[Any] = [value]
    values = largest = 0
    for depth in range(1, most + 2):
        values += len(level)
        inside = [held for item in level if (held := _inside(item))]
        if not inside:
            return _Size(depth, values, largest)
        largest = max(largest, *map(len, inside))
        level = [inner for held in inside for inner in held]
    return None


def _keywords(schema: Schema) -> Iterator[tuple[str, JsonValue]]:
    """Yield what stands under each key anywhere in a schema."""
    level: list[JsonValue] = [cast("JsonValue", schema)]
    while level:
        for item in level:
            if isinstance(item, dict):
                yield from item.items()
        level = [inner for item in level for inner in _inside(item)]


def _inside(value: JsonValue) -> Collection[JsonValue]:
    """The values that a list or a dictionary holds."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _where(path: Iterable[Any], root: str) -> str:
    steps = list(path)
    text = "".join(f"[{cut(repr(step), _MAX_VALUE)}]" for step in steps[:_MAX_PATH])
    return f"{root}{text}" + ("..." if len(steps) > _MAX_PATH else "")


def _refusal(error: Any) -> str:
    reasons = clean(" or ".join(dict.fromkeys(_reasons(error))), _MAX_PROBLEM)
    return f"{reasons} ({_MASK} is {_short(error.instance)})"


def _reasons(error: Any) -> Iterator[str]:
    """Yield why a value does not fit; where it fits none of several schemas, why for each."""
    alternatives: Any = getattr(error.kind, "context", None) or ()
    for errors in alternatives:
        for alternative in errors:
            yield from _reasons(alternative)
    if not alternatives:
        yield str(error.message)


def _short(value: JsonValue) -> str:
    if isinstance(value, str):
        return cut(json.dumps(value[:_MAX_VALUE], ensure_ascii=False), _MAX_VALUE)
    if isinstance(value, list | dict):
        return f"a {'list' if isinstance(value, list) else 'mapping'} of {len(value)}"
    return cut(repr(value), _MAX_VALUE)
