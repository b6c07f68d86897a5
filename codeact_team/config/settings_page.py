"""Writes a page for people about the settings of this package's components, made of their JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from codeact_team.config.components import KINDS_BY_FIELD
from codeact_team.config.field_docs import described_schema
from codeact_team.config.schema import first_paragraph, known_components, markdown
from codeact_team.providers import schema_of

_HEAD = """\
# Settings of codeact_team's components

A config names each component by its `provider`, and its settings under `config`. This page is written by
`codeact-team schema -o FILE.md`; do not edit it. AutoGen's components are described in its own documentation.
"""

_TYPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "object": "mapping",
}
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
_LONGEST_DEFAULT = 60

_Schema = Mapping[str, Any]


def config_reference() -> str:
    """The settings of all components of this package as Markdown."""
    sections = [_HEAD]
    inner: dict[str, _Schema] = {}
    for provider, component in known_components():
        if provider.startswith("codeact_team."):
            schema = described_schema(schema_of(component))
            sections.append(f"## {provider}\n\n{first_paragraph(component)}\n\n{_table(schema)}\n")
            inner |= {name: each for name, each in schema.get("$defs", {}).items() if "properties" in each}
    inner.pop("ComponentModel", None)
    for name, schema in sorted(inner.items()):
        sections.append(f"## {name}\n\n{_described(schema)}\n\n{_table(schema)}\n")
    return "\n".join(sections)


def _described(schema: _Schema) -> str:
    return markdown(" ".join(str(schema.get("description", "")).partition("\n\n")[0].split()))


def _table(schema: _Schema) -> str:
    required = schema.get("required", ())
    rows = ["| field | value | default | |", "|---|---|---|---|"]
    for name, field in schema["properties"].items():
        default = "required" if name in required else _default(field)
        cells = (f"`{name}`", _value(field, name), default, _described(field))
        rows.append("| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |")
    return "\n".join(rows)


def _default(field: _Schema) -> str:
    default = field.get("default")
    if default in (None, "", [], {}):
        return ""
    text = json.dumps(default, ensure_ascii=False)
    return f"`{text}`" if len(text) <= _LONGEST_DEFAULT else "a text"


def _value(field: _Schema, name: str) -> str:
    """What kind of value a field takes."""
    return " or ".join(dict.fromkeys(_alternatives(field, name)))


def _alternatives(field: _Schema, name: str) -> Iterator[str]:
    match field:
        case {"$ref": str(reference)}:
            yield _link(reference.rpartition("/")[2], name)
        case {"anyOf": alternatives} | {"oneOf": alternatives}:
            for each in alternatives:
                yield from _alternatives(each, name)
        case {"enum": values}:
            yield from (f"`{value}`" for value in values)
        case {"const": value}:
            yield f"`{value}`"
        case {"type": "null"}:
            pass
        case {"type": "array", "items": items}:
            yield f"list of {_value(items, name)}"
        case {"type": "object", "additionalProperties": {**items}}:
            yield f"mapping to {_value(items, name)}"
        case {"type": kind}:
            bounds = [f"{sign} {field[key]}" for key, sign in _BOUNDS.items() if key in field]
            yield " ".join((_TYPES.get(kind, str(kind)), *bounds))
        case _:
            yield "anything"


def _link(definition: str, name: str) -> str:
    if definition != "ComponentModel":
        return f"[{definition}](#{definition.lower()})"
    return f"component ({' or '.join(kind.__name__ for kind in KINDS_BY_FIELD.get(name, ()))})"
