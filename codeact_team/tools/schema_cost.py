"""Count the work of checking a value against a JSON schema whose parts refer to each other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, cast

from pydantic import JsonValue

from codeact_team.tools.schema_documents import Document, Schema, as_schema, inside
from codeact_team.visibility import cut

MAX_CHECKS = 100_000
"""How often one value may have to be checked against some part of a schema."""

_MAX_NESTING = 250
_UNDER_WAY = 0
_TOO_MANY = (
    "its parts refer to each other so often that a check could take for ever; write it with fewer references "
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


class Expansion:
    """Bounds the checks that one value may need, whatever the value; raises ``ValueError`` if there are too many.

    Where a schema refers to itself, the checker remembers what it has checked. It follows every other reference anew, so
    forty definitions, each of which refers to the next one twice, mean 2 to the 40th checks.
    """

    def __init__(self, schema: Schema) -> None:
        self._root = schema
        self.is_recursive = False
        """Whether a part contains itself."""
        self.checks = self._count(schema, 0, iter, {})
        """How often one value is checked at most."""
        if self.is_recursive:
            # which reference closes a circle depends on where one begins
            self.checks = max(self.checks, self._count(schema, 0, reversed, {}))

    def _count(self, schema: Schema, depth: int, order: _Order, known: dict[int, int]) -> int:
        """Count the checks of one value against a part, and against whatever that refers to."""
        if (checks := known.get(id(schema))) is not None:
            self.is_recursive = self.is_recursive or checks == _UNDER_WAY
            return checks
        known[id(schema)] = _UNDER_WAY
        checks = 1
        for parts in order(list(_parts(schema, self._targets(schema)))):
            if depth == _MAX_NESTING:
                raise ValueError(_TOO_MANY)
            checks += max(
                (self._count(part, depth + 1, order, known) or 1 for part in order(parts)), default=0
            )
        if not _REPEATED.isdisjoint(schema):
            # what is evaluated is found out by evaluating it again
            checks *= 3
        if checks > MAX_CHECKS:
            raise ValueError(_TOO_MANY)
        known[id(schema)] = checks
        return checks

    def _targets(self, schema: Schema) -> list[Schema]:
        """Find what a schema refers to, or all that it may refer to where that is not certain."""
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
            if fragment and not fragment.startswith("/"):
                if fragment in [str(part.get(naming)).removeprefix("#") for naming in _NAMING]:
                    yield cast("JsonValue", part)
            elif "%" in name or any(ending in str(part.get(naming, "")) for naming in ("$id", "id")):
                yield Document(part).locate(f"#{fragment}")

    @cached_property
    def _named(self) -> list[Schema]:
        """All parts with a name of their own."""
        level: list[JsonValue] = [cast("JsonValue", self._root)]
        found: list[Schema] = []
        while level:
            found += [as_schema(item) for item in level if _is_named(item)]
            level = [inner for item in level for inner in inside(item)]
        return found


def _is_named(value: JsonValue) -> bool:
    return isinstance(value, dict) and any(isinstance(value.get(naming), str) for naming in _NAMING)


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
