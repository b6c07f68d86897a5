"""Write JSON schemas as Python annotations. Objects with known fields get a name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

from codeact_team.tools.identifiers import RESERVED, identifier
from codeact_team.tools.schema_documents import Document, Fields, Schema, as_schema, subschemas

MAX_TYPES = 40
"""How many objects get a name. Further ones are called ``dict[str, Any]``."""

_MAX_SCHEMAS = 3000
_MAX_NESTING = 25
_MAX_LENGTH = 300
_MAX_LITERALS = 12
_MAX_LITERAL_LENGTH = 100
_NAMES = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_TAKEN = RESERVED | {"Any", "Literal", "None", "bool", "dict", "float", "int", "list", "str"}
_WORDS = re.compile(r"[^\W_]+")


@dataclass
class NamedType:
    """An object whose fields are known, and the annotation of each by its key.

    ``base`` is what annotations would call it if nothing else were called so.
    """

    name: str
    base: str
    schema: Schema
    document: Document
    fields: Fields
    hints: dict[str, str] = field(default_factory=dict[str, str])


class Annotator:
    """Writes the annotations of one tool, and keeps the objects that they name in the order in which they are met."""

    def __init__(self) -> None:
        self.types: list[NamedType] = []
        self._names = set(_TAKEN)
        self._named: dict[int, str] = {}
        self._open: set[int] = set()
        self._left = _MAX_SCHEMAS
        self._depth = 0

    def annotation(self, document: Document, schema: Schema, hint: str) -> str:
        """Write the annotation of a value; an object that has no title is called after the hint."""
        self._depth += 1
        parts = list(dict.fromkeys(self._parts(document, schema, hint)))
        self._depth -= 1
        if "None" in parts:
            parts = [part for part in parts if part != "None"] + ["None"]
        text = " | ".join(parts)
        return "Any" if "Any" in parts or len(text) > _MAX_LENGTH else text

    def _parts(self, document: Document, schema: Schema, hint: str) -> Iterator[str]:
        self._left -= 1
        if self._left < 0 or self._depth > _MAX_NESTING or len(self._open) > _MAX_NESTING:
            yield "Any"
        elif isinstance(reference := schema.get("$ref"), str):
            yield from self._referenced(document, reference)
        elif (choices := literals(schema)) is not None:
            yield from choices
        elif document.has_fields(schema):
            yield self._object(document, schema, hint)
        elif alternatives := self._alternatives(document, schema, hint):
            yield from alternatives
        elif parts := list(subschemas(schema, "allOf")):
            yield next(
                (text for part in parts if (text := self.annotation(document, part, hint)) != "Any"), "Any"
            )
        else:
            for kind in _types(schema):
                yield self._of_type(document, kind, schema, hint)

    def _alternatives(self, document: Document, schema: Schema, hint: str) -> list[str]:
        options = [*subschemas(schema, "anyOf"), *subschemas(schema, "oneOf")]
        parts = [part for option in options for part in self._parts(document, option, hint)]
        # the type is told once, beside alternatives that only differ in other things
        return [] if "Any" in parts and "type" in schema else parts

    def _referenced(self, document: Document, reference: str) -> Iterator[str]:
        target = document.find(reference)
        if id(target) in self._named:
            yield self._named[id(target)]
        elif id(target) in self._open:
            yield "Any"
        else:
            self._open.add(id(target))
            yield from self._parts(document, target, reference.rpartition("/")[2])
            self._open.discard(id(target))

    def _object(self, document: Document, schema: Schema, hint: str) -> str:
        if id(schema) in self._named:
            return self._named[id(schema)]
        if len(self.types) >= MAX_TYPES:
            return "dict[str, Any]"
        title = schema.get("title")
        base = _camel(title if isinstance(title, str) and title else hint)
        if same := next((one for one in self.types if one.base == base and one.schema == schema), None):
            return same.name
        found = NamedType(self._name(base), base, schema, document, document.fields_of(schema))
        # before its fields: it may be one of them
        self._named[id(schema)] = found.name
        self.types.append(found)
        for key, value in found.fields.schemas.items():
            found.hints[key] = self.annotation(document, value, f"{found.name} {key}")
        return found.name

    def _name(self, base: str) -> str:
        name, number = base, 1
        while name in self._names:
            number += 1
            name = f"{base}{number}"
        self._names.add(name)
        return name

    def _of_type(self, document: Document, kind: str | None, schema: Schema, hint: str) -> str:
        if kind == "array":
            items = [*subschemas(schema, "prefixItems"), *_single(schema, "items")]
            return f"list[{self._union(document, items, f'{hint} item')}]"
        if kind == "object":
            values = [
                *_single(schema, "additionalProperties"),
                *map(as_schema, as_schema(schema.get("patternProperties")).values()),
            ]
            return f"dict[str, {self._union(document, values, f'{hint} value')}]"
        return _NAMES.get(kind or "", "Any")

    def _union(self, document: Document, schemas: list[Schema], hint: str) -> str:
        return self.annotation(document, cast("Schema", {"anyOf": schemas}), hint)


def _camel(hint: str) -> str:
    words = _WORDS.findall(hint[:200])
    return identifier("".join(word[:1].upper() + word[1:] for word in words)[:60], "Object")


def literals(schema: Schema) -> list[str] | None:
    """Write the annotation of a schema that lists its values; ``None`` if it lists none, or too many."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list) or not 0 < len(values) <= _MAX_LITERALS:
        return None
    if not all(value is None or isinstance(value, str | int) for value in values):
        return None
    texts = [repr(value) for value in values if value is not None]
    if sum(map(len, texts)) > _MAX_LITERAL_LENGTH:
        return None
    return [f"Literal[{', '.join(texts)}]"] * bool(texts) + ["None"] * (None in values)


def _types(schema: Schema) -> list[str | None]:
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return [kind if isinstance(kind, str) else None for kind in kinds]
    if isinstance(kinds, str):
        return [kinds]
    values = schema.get("enum")
    if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
        return ["string"]
    guesses = {"items": "array", "prefixItems": "array", "additionalProperties": "object"}
    return [next((kind for keyword, kind in guesses.items() if keyword in schema), None)]


def _single(schema: Schema, keyword: str) -> Iterator[Schema]:
    if isinstance(found := schema.get(keyword), Mapping):
        yield as_schema(found)
