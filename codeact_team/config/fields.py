"""Overrides with ``{field}`` in them, which stands for data, such as what a task of a batch says.

Data is put in after YAML was parsed, and after references to the environment were resolved: nothing in it is read as
either. So whatever a field says, it sets its value and nothing else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from pydantic import JsonValue

from codeact_team.config import yaml12
from codeact_team.config.document import TextWithData
from codeact_team.errors import ConfigError

# ${NAME} is a reference to the environment
_FIELD = re.compile(r"(?<!\$)\{([A-Za-z_][A-Za-z0-9_-]*)\}")
_FLOW = ("[", "{", '"', "'")
_PRIVATE_USE = range(0xE000, 0xF900)


def field_names(override: str) -> frozenset[str]:
    """The fields in the value of an override, which is written ``path=value``."""
    return frozenset(_FIELD.findall(override.partition("=")[2]))


def parse_with_fields(value: str, fields: Mapping[str, JsonValue]) -> Any:
    """Parse the value of an override, and put data in the place of its fields.

    A value, or text in a list or a mapping, that is one field becomes what the field says, be it text, a number or a list.
    Within longer text, a field is text. A value is YAML if it begins with a bracket or a quote, and text if not.

    Args:
        value: What is behind the ``=``.
        fields: All that it names.

    Returns:
        Plain data, but for :class:`TextWithData` where there is text from a field.

    Raises:
        YamlError: If it cannot be parsed.
        ConfigError: If a field stands where a key is, or says something that is nested too deep.
    """
    # YAML would take {field} for a mapping, so a name is set between two characters that are nowhere else in the value
    mark = next(char for char in map(chr, _PRIVATE_USE) if char not in value)
    marked = _FIELD.sub(lambda found: f"{mark}{found[1]}{mark}", value.strip())
    parsed = yaml12.parse_value(marked) if marked.startswith(_FLOW) else marked
    return _filled(parsed, mark, fields)


def _filled(value: Any, mark: str, fields: Mapping[str, JsonValue]) -> Any:
    match value:
        case dict():
            mapping = cast(dict[str, Any], value)
            if any(mark in key for key in mapping):
                raise ConfigError("a field cannot stand for a key")
            return {key: _filled(item, mark, fields) for key, item in mapping.items()}
        case list():
            return [_filled(item, mark, fields) for item in cast(list[Any], value)]
        case str() if mark in value:
            # in turn what is between fields, and the name of one
            parts = value.split(mark)
            if len(parts) == 3 and parts[0] == parts[2] == "":
                return _data(fields[parts[1]], parts[1])
            return TextWithData(
                [_text(fields[part]) if number % 2 else part for number, part in enumerate(parts)]
            )
        case _:
            return value


def _data(value: JsonValue, name: str, depth: int = 0) -> Any:
    if depth > yaml12.MAX_DEPTH:
        raise ConfigError(f"the field {name!r} is nested more than {yaml12.MAX_DEPTH} deep")
    match value:
        case str():
            return TextWithData(["", value, ""])
        case dict():
            return {key: _data(item, name, depth + 1) for key, item in value.items()}
        case list():
            return [_data(item, name, depth + 1) for item in value]
        case _:
            return value


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
