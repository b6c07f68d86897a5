"""The JSON Schema of configs, and the page of settings."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, cast

from autogen_core import ComponentModel
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue, models_json_schema
from pydantic_core import PydanticOmit
from pydantic_core.core_schema import ModelSchema

from codeact_team.core.autogen_internals import WELL_KNOWN_PROVIDERS, ComponentClass
from codeact_team.core.providers import KINDS_BY_FIELD, is_loadable, schema_of, unsafe_reason
from codeact_team.core.settings import field_docs


class _DescribedSchema(GenerateJsonSchema):
    """A JSON Schema that describes fields by their docstrings, and leaves out what only Python can set."""

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        described = super().model_schema(schema)
        docs = field_docs(schema["cls"])
        for name, field in described.get("properties", {}).items():
            if name in docs:
                field["description"] = docs[name]
        return described

    def handle_invalid_for_json_schema(self, schema: Any, error_info: str) -> JsonSchemaValue:
        raise PydanticOmit


# reading the sources of a model's fields takes some milliseconds, and each unknown key in a config needs it
@lru_cache(maxsize=64)
def described_schema(model: type[BaseModel]) -> Mapping[str, Any]:
    """The JSON Schema of a config model, with the docstrings of its fields."""
    return model.model_json_schema(schema_generator=_DescribedSchema)


# These come with our own dependencies. The schema also accepts components of other packages, with any settings.
_MODULES = (
    "codeact_team",
    "autogen_agentchat.agents",
    "autogen_agentchat.base",
    "autogen_agentchat.conditions",
    "autogen_agentchat.messages",
    "autogen_agentchat.teams",
    "autogen_agentchat.tools",
    "autogen_core",
    "autogen_core.memory",
    "autogen_core.model_context",
    "autogen_core.tools",
    "autogen_ext.code_executors.docker",
    "autogen_ext.code_executors.local",
    "autogen_ext.models.cache",
    "autogen_ext.models.openai",
    "autogen_ext.models.replay",
    "autogen_ext.tools.code_execution",
)
_COMPLETE = "codeact_team|autogen_agentchat"
"""The packages whose components are all known: any other name in them is a mistake."""

_REFERENCE = {"$ref": "#/$defs/Reference"}
_ROLE = re.compile(r":\w+(?::\w+)*:`[~!]?([^`<]*?)(?:\s*<[^`]*>)?`")


def config_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a config document."""
    components = dict(known_components())
    models: dict[tuple[type[BaseModel], JsonSchemaMode], None] = dict.fromkeys(
        (schema_of(component), "validation") for component in components.values()
    )
    by_model, joint = models_json_schema(list(models), schema_generator=_DescribedSchema)
    configs = {path: by_model[schema_of(cls), "validation"] for path, cls in components.items()}
    definitions: dict[str, Any] = {
        name: _closed(schema, None)
        for name, schema in joint["$defs"].items()
        if name != ComponentModel.__name__
    }
    definitions["Reference"] = {
        "type": "string",
        "pattern": r"\$\{[^}]+\}",
        "description": "A reference to an environment variable: `${NAME}` or `${NAME:-default}`.",
    }
    definitions[_definition(())] = _component(components, configs)
    for kinds in KINDS_BY_FIELD.values():
        fitting = {path: component for path, component in components.items() if issubclass(component, kinds)}
        definitions[_definition(kinds)] = _component(fitting, configs)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A config of codeact_team",
        "$ref": f"#/$defs/{_definition(())}",
        "$defs": dict(sorted(definitions.items())),
    }


def known_components() -> Iterator[tuple[str, ComponentClass]]:
    """The components that come with this package's own dependencies, by the path that a config names."""
    for module_name in _MODULES:
        module = importlib.import_module(module_name)
        for name in sorted(getattr(module, "__all__", dir(module))):
            found = getattr(module, name)
            if inspect.isclass(found) and is_loadable(found):
                yield found.component_provider_override or f"{module_name}.{name}", found


def _definition(kinds: Sequence[type]) -> str:
    # no model has a dot in its name
    return ".".join(("Component", *(kind.__name__ for kind in kinds)))


def _component(
    components: Mapping[str, ComponentClass], configs: Mapping[str, JsonSchemaValue]
) -> dict[str, Any]:
    described = {path: _first_paragraph(component) for path, component in components.items()}
    names = {
        path: [path, *(alias for alias, target in WELL_KNOWN_PROVIDERS.items() if target == path)]
        for path in components
    }
    known = [name for each in names.values() for name in each]
    return {
        "type": "object",
        "required": ["provider", "config"],
        "additionalProperties": False,
        "properties": {
            "provider": {
                "description": "The component's class.",
                "anyOf": [
                    {
                        "enum": known,
                        "markdownEnumDescriptions": [
                            described[path] for path, each in names.items() for _ in each
                        ],
                    },
                    {"type": "string", "pattern": rf"^(?!({_COMPLETE})\.)\w+(\.\w+)+$"},
                    _REFERENCE,
                ],
            },
            "component_type": {"type": ["string", "null"], "description": "May be left out."},
            "version": {"type": ["integer", "null"], "description": "May be left out."},
            "component_version": {
                "type": ["integer", "null"],
                "description": "Version of the config's schema.",
            },
            "description": {
                "type": ["string", "null"],
                "description": "For people; of a config with a recorded model, the task that was recorded.",
            },
            "label": {"type": ["string", "null"], "description": "For people; nothing else reads it."},
            "config": {"type": "object", "description": "The component's settings."},
        },
        "allOf": [
            {
                "if": {"properties": {"provider": {"enum": names[path]}}, "required": ["provider"]},
                "then": {
                    "properties": {
                        "component_type": {"enum": [component.component_type, None]},
                        "config": {**configs[path], "description": described[path]},
                    }
                },
            }
            for path, component in components.items()
        ],
    }


def _first_paragraph(component: ComponentClass) -> str:
    """The first paragraph of a component's docstring as Markdown."""
    paragraph = inspect.cleandoc(component.__doc__ or "").partition("\n\n")[0]
    text = markdown(" ".join(paragraph.split()))
    reason = unsafe_reason(component)
    return text if reason is None else f"{text} **Refused unless asked for: {reason}.**"


def markdown(text: str) -> str:
    """A docstring's text as Markdown."""
    return _ROLE.sub(r"`\1`", text).replace("``", "`")


def _closed(schema: Mapping[str, Any], field: str | None) -> dict[str, Any]:
    """Pydantic's schema as the loader applies it: no unknown keys, a reference for any scalar, components by kind."""
    if schema.get("$ref") == f"#/$defs/{ComponentModel.__name__}":
        kinds = KINDS_BY_FIELD.get(field or "", ())
        return {**schema, "$ref": f"#/$defs/{_definition(kinds)}"}
    closed: dict[str, Any] = {
        key: _closed_keyword(key, value, field)
        for key, value in schema.items()
        if key not in ("title", "discriminator")
    }
    if "description" in closed:
        closed["description"] = markdown(closed["description"])
    if "properties" in closed:
        closed["additionalProperties"] = False
        closed["required"] = [
            name
            for name in closed.get("required", ())
            if {"type": "null"} not in closed["properties"][name].get("anyOf", ())
        ]
    if closed.get("type") in ("integer", "number", "boolean") or "enum" in closed:
        outer = {key: closed.pop(key) for key in ("description", "default") if key in closed}
        return {**outer, "anyOf": [closed, _REFERENCE]}
    return closed


def _closed_keyword(key: str, value: Any, field: str | None) -> Any:
    match key:
        case "properties":
            return {name: _closed(each, name) for name, each in cast(dict[str, Any], value).items()}
        case "anyOf":
            alternatives = [_closed(each, field) for each in value]
            flat = [
                inner
                for each in alternatives
                for inner in (each["anyOf"] if [*each] == ["anyOf"] else [each])
            ]
            return [each for index, each in enumerate(flat) if each not in flat[:index]]
        case "oneOf" | "allOf" | "prefixItems":
            return [_closed(each, field) for each in value]
        case "items" | "additionalProperties" if isinstance(value, dict):
            return _closed(cast(dict[str, Any], value), field)
        case _:
            return value


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
            sections.append(f"## {provider}\n\n{_first_paragraph(component)}\n\n{_table(schema)}\n")
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
    """The kind of value that a field takes."""
    return " or ".join(dict.fromkeys(_alternatives(field, name)))


def _alternatives(field: _Schema, name: str) -> Iterator[str]:
    match field:
        case {"$ref": str(reference)}:
            definition = reference.rpartition("/")[2]
            kinds = " or ".join(kind.__name__ for kind in KINDS_BY_FIELD.get(name, ()))
            is_component = definition == ComponentModel.__name__
            yield f"component ({kinds})" if is_component else f"[{definition}](#{definition.lower()})"
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
