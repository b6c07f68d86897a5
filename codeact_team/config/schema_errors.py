"""Says in words for the writer of a document what pydantic finds wrong with it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, cast

from autogen_core import ComponentModel
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from codeact_team.config.credentials import is_credential_key
from codeact_team.config.document import Document, Path, Problem, at, in_words, last_key
from codeact_team.config.field_docs import described_schema
from codeact_team.suggestions import did_you_mean

# pydantic's error types that say "another kind of value", by their beginnings
_EXPECTED = {
    "int_": "a whole number",
    "float_": "a number",
    "decimal_": "a number",
    "bool_": "true or false",
    "string_type": "text",
    "string_sub_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "iterable_type": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "typed_dict_type": "a mapping",
    "dataclass_type": "a mapping",
    "none_required": "nothing (null)",
    "callable_type": "a Python function, which a config cannot hold",
    "is_instance_of": "a Python object, which a config cannot hold",
}

_SHOWN_CHARS = 40
_MOST_TOLD = 100
"""Of more mistakes in one component, each with its suggestions, nobody reads the rest."""


def problems_of(
    error: ValidationError, model: type[BaseModel], document: Document, path: Path
) -> list[Problem]:
    """Tell what is wrong with the mapping at ``path`` of a document, one problem for each place in it."""
    data = at(document.data, path)
    by_place: dict[Path, list[ErrorDetails]] = {}
    for details in error.errors(include_url=False):
        by_place.setdefault(place_of(details, data), []).append(details)
    # of a union, the alternative that fits better fails deeper inside; the others only fail at its top
    outer = {place[:length] for place in by_place for length in range(len(place))}
    for place, found in list(by_place.items()):
        if place in outer and all(_expected(details) for details in found):
            del by_place[place]
    told = [
        _problem(found, model, place, document, (*path, *place))
        for place, found in islice(by_place.items(), _MOST_TOLD)
    ]
    if (more := len(by_place) - len(told)) > 0:
        told.append(Problem(path, f"{more} more problems are in it"))
    return told


def place_of(details: ErrorDetails, data: Any) -> Path:
    """Where an error is in the data. Pydantic's own location also names the alternatives of unions."""
    place: list[str | int] = []
    *parents, last = details["loc"] or ("",)
    for step in (*parents, last):
        if isinstance(data, dict) and step in data:
            data = cast(dict[str, Any], data)[cast(str, step)]
        elif isinstance(data, list) and isinstance(step, int) and step < len(cast(list[Any], data)):
            data = cast(list[Any], data)[step]
        else:
            continue
        place.append(step)
    if details["type"] == "missing":
        place.append(last)
    return tuple(place)


def _problem(
    found: list[ErrorDetails], model: type[BaseModel], place: Path, document: Document, path: Path
) -> Problem:
    # of a union, the alternative fits better that takes this kind of value and has something else against it
    first = next((details for details in found if not _expected(details)), found[0])
    shown = _shown(first["input"], document, path)
    expected = list(dict.fromkeys(words for details in found if (words := _expected(details))))
    if _expected(first):
        return Problem(path, f"expected {' or '.join(expected)}, got {shown}")
    match first["type"]:
        case "missing":
            return Problem(path, "is required")
        case "extra_forbidden":
            known = list(_known_keys(model, place[:-1]))
            near = did_you_mean(str(place[-1]), known) or (f" (known: {', '.join(known)})" if known else "")
            return Problem(path, f"unknown key{near}")
        case "literal_error" | "enum":
            allowed = str(first.get("ctx", {}).get("expected"))
            near = did_you_mean(str(first["input"]), re.findall(r"'([^']*)'", allowed))
            return Problem(path, f"expected {allowed}, got {shown}{near}")
        case kind:
            message = first["msg"].removeprefix("Value error, ").replace("Input should", "has to")
            return Problem(path, message, not_allowed=kind == "not_allowed")


def _expected(details: ErrorDetails) -> str | None:
    if details.get("ctx", {}).get("class_name") == ComponentModel.__name__:
        return "a component (a mapping with the keys 'provider' and 'config')"
    kind = details["type"]
    return next((words for prefix, words in _EXPECTED.items() if kind.startswith(prefix)), None)


def _shown(value: Any, document: Document, path: Path) -> str:
    if is_credential_key(last_key(path)) or not isinstance(value, bool | int | float | str):
        return in_words(value)
    if written := document.written(path):
        return written
    return json.dumps(value, ensure_ascii=False) if len(repr(value)) <= _SHOWN_CHARS else in_words(value)


def _known_keys(model: type[BaseModel], place: Path) -> Iterator[str]:
    """The keys that a mapping at ``place`` of the config may have."""
    schema = described_schema(model)
    for alternative in _at(schema, place, schema.get("$defs", {})):
        yield from alternative.get("properties", ())


def _at(
    schema: Mapping[str, Any], place: Path, definitions: Mapping[str, Any]
) -> Iterator[Mapping[str, Any]]:
    if (reference := schema.get("$ref")) is not None:
        yield from _at(definitions[str(reference).rpartition("/")[2]], place, definitions)
        return
    for keyword in ("anyOf", "oneOf", "allOf"):
        for alternative in schema.get(keyword, ()):
            yield from _at(alternative, place, definitions)
    if not place:
        yield schema
        return
    step, *rest = place
    inner = schema.get("items") if isinstance(step, int) else schema.get("properties", {}).get(step)
    inner = inner or schema.get("additionalProperties")
    if isinstance(inner, Mapping):
        yield from _at(cast(Mapping[str, Any], inner), tuple(rest), definitions)
