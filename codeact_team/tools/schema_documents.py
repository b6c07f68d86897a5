"""Read JSON schemas that may say anything: follow references, and find the fields of an object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import unquote

from pydantic import JsonValue

Schema = Mapping[str, JsonValue]

NO_SCHEMA: Schema = {}
"""Of a value that may be anything."""

_MAX_NESTING = 20


@dataclass
class Fields:
    """The fields of an object: their schemas by their keys, and which must be there."""

    schemas: dict[str, Schema] = field(default_factory=dict[str, Schema])
    required: set[str] = field(default_factory=set[str])


class Document:
    """A JSON schema, checked against its meta-schema, with what it defines."""

    def __init__(self, root: Schema) -> None:
        self.root = root

    def resolve(self, schema: Schema) -> Schema:
        """Follow the reference of ``schema``, if it has one, and add what it says itself."""
        for _ in range(_MAX_NESTING):
            if not isinstance(reference := schema.get("$ref"), str):
                return schema
            target = self.find(reference)
            schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
        return NO_SCHEMA

    def find(self, reference: str) -> Schema:
        """Return the schema at ``#/like/this``, or one that allows anything if there is none."""
        return as_schema(self.locate(reference))

    def locate(self, reference: str) -> JsonValue:
        """Return what is at ``#/like/this``; ``None`` if nothing is."""
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
        """Collect the fields that an object of this schema may have, of all its alternatives."""
        return self._fields_of(schema, set())

    def _fields_of(self, schema: Schema, seen: set[str]) -> Fields:
        fields = Fields()
        reference = schema.get("$ref")
        # once: references that lead to each other in pairs would double the work with each step
        if isinstance(reference, str) and reference not in seen:
            seen.add(reference)
            _add(fields, self._fields_of(self.find(reference), seen))
        for part in subschemas(schema, "allOf"):
            _add(fields, self._fields_of(part, seen))
        for keyword in ("anyOf", "oneOf"):
            if alternatives := [self._fields_of(part, seen) for part in subschemas(schema, keyword)]:
                in_all = set[str].intersection(*(one.required for one in alternatives))
                for one in alternatives:
                    _add(fields, Fields(one.schemas, in_all))
        _add(fields, _own_fields(schema))
        return fields

    def has_fields(self, schema: Schema) -> bool:
        """Tell whether this is the schema of an object whose fields are known."""
        parts = (schema, *subschemas(schema, "allOf"))
        return any(isinstance(self.resolve(part).get("properties"), Mapping) for part in parts)


def subschemas(schema: Schema, keyword: str) -> Iterator[Schema]:
    """Yield the schemas in the list under ``keyword``."""
    listed = schema.get(keyword)
    return map(as_schema, listed) if isinstance(listed, list) else iter(())


def as_schema(value: object) -> Schema:
    """Return ``value`` if it is a schema that says something, and an empty one if not."""
    return cast("Schema", value) if isinstance(value, Mapping) else NO_SCHEMA


def inside(value: JsonValue) -> Iterator[JsonValue]:
    """Yield the values that a list or a dictionary holds."""
    if isinstance(value, dict):
        return iter(value.values())
    return iter(value) if isinstance(value, list) else iter(())


def _own_fields(schema: Schema) -> Fields:
    properties, required = schema.get("properties"), schema.get("required")
    return Fields(
        {key: as_schema(value) for key, value in as_schema(properties).items()},
        {key for key in required if isinstance(key, str)} if isinstance(required, list) else set(),
    )


def _add(fields: Fields, more: Fields) -> None:
    for key, schema in more.schemas.items():
        fields.schemas[key] = {**fields.schemas[key], **schema} if key in fields.schemas else schema
    fields.required |= more.required
