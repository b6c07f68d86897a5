"""Schemas without what cannot be checked in bounded time: regular expressions, and what hangs on their outcome."""

from __future__ import annotations

from pydantic import JsonValue

from codeact_team.tools.schemas import Schema, as_schema, inside

_DATA = frozenset({"const", "enum"})
_BY_NAME = frozenset({"$defs", "definitions", "dependencies", "dependentSchemas", "properties"})
_WORDS = frozenset({"$comment", "default", "description", "example", "examples", "title"})
_EXPENSIVE = frozenset(
    {"format", "pattern", "patternProperties", "unevaluatedItems", "unevaluatedProperties"}
)
_EXCLUDING = frozenset({"contains", "if", "not"})
_INEXACT = _EXPENSIVE | {"$dynamicRef", "$recursiveRef", "$ref", "$schema", "oneOf"}


def loosen(schema: Schema) -> dict[str, JsonValue]:
    """A schema that every value fits that fits ``schema``.

    What the tool itself checks anyway is left to it: regular expressions, which can take for ever, and exclusions that
    may depend on them. ``$schema`` goes, too: within a schema it would call for another validator.
    """
    loose: dict[str, JsonValue] = {}
    for keyword, value in schema.items():
        if keyword in _DATA:
            loose[keyword] = value
        elif keyword in _BY_NAME:
            loose[keyword] = {name: _loosened(part) for name, part in as_schema(value).items()}
        elif keyword not in _WORDS | _EXPENSIVE and not (keyword == "$schema" and isinstance(value, str)):
            loose[keyword] = _loosened(value)
    for keyword in _EXCLUDING & loose.keys():
        if not _is_exact(schema[keyword]):
            del loose[keyword]
    if "patternProperties" in schema:
        # only the patterns know which properties are additional
        loose.pop("additionalProperties", None)
    if (alternatives := loose.pop("oneOf", None)) is not None:
        # looser ones may fit together
        others = loose.get("allOf")
        loose["allOf"] = [*(others if isinstance(others, list) else []), {"anyOf": alternatives}]
    return loose


def _loosened(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return loosen(value)
    return [_loosened(item) for item in value] if isinstance(value, list) else value


def _is_exact(value: JsonValue) -> bool:
    """Whether a value that fits the looser schema fits this one, too."""
    if isinstance(value, dict) and not _INEXACT.isdisjoint(value):
        return False
    return all(map(_is_exact, inside(value)))
