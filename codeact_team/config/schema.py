"""A JSON Schema with which editors complete and check a config while it is written."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from autogen_core import ComponentModel
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, JsonSchemaValue, models_json_schema

from codeact_team.autogen_internals import WELL_KNOWN_PROVIDERS, ComponentClass
from codeact_team.config.components import KINDS_BY_FIELD
from codeact_team.config.field_docs import DescribedSchema
from codeact_team.providers import is_loadable, schema_of, unsafe_reason

# Those that come with our own dependencies; components of others are accepted by the schema without knowing them.
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
"""The packages all of whose components are known, so that another name there is a mistake."""

_REFERENCE = {"$ref": "#/$defs/Reference"}
_ROLE = re.compile(r":\w+(?::\w+)*:`[~!]?([^`<]*?)(?:\s*<[^`]*>)?`")


def config_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a config document."""
    components = dict(known_components())
    models: dict[tuple[type[BaseModel], JsonSchemaMode], None] = dict.fromkeys(
        (schema_of(component), "validation") for component in components.values()
    )
    by_model, joint = models_json_schema(list(models), schema_generator=DescribedSchema)
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
    # a dot keeps the name apart from the models'
    return ".".join(("Component", *(kind.__name__ for kind in kinds)))


def _component(
    components: Mapping[str, ComponentClass], configs: Mapping[str, JsonSchemaValue]
) -> dict[str, Any]:
    described = {path: first_paragraph(component) for path, component in components.items()}
    names = {path: [path, *_aliases(path)] for path in components}
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


def _aliases(path: str) -> list[str]:
    return [alias for alias, target in WELL_KNOWN_PROVIDERS.items() if target == path]


def first_paragraph(component: ComponentClass) -> str:
    """What a component is, as Markdown."""
    paragraph = inspect.cleandoc(component.__doc__ or "").partition("\n\n")[0]
    text = markdown(" ".join(paragraph.split()))
    reason = unsafe_reason(component)
    return text if reason is None else f"{text} **Refused unless asked for: {reason}.**"


def markdown(text: str) -> str:
    """A docstring's text as Markdown."""
    return _ROLE.sub(r"`\1`", text).replace("``", "`")


def _closed(schema: Mapping[str, Any], field: str | None) -> dict[str, Any]:
    """Pydantic's schema as a loader applies it: no unknown keys, references for any scalar, components by kind."""
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
