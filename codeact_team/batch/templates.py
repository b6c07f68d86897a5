"""Overrides with ``{field}`` in them, which stands for what a task says there."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from pydantic import JsonValue

_FIELD = re.compile(r"\{([A-Za-z_][A-Za-z0-9_-]*)\}")
_FLOW = ("[", "{", '"', "'")


class TemplateError(Exception):
    """A template asks for a field that is not there; the text says which."""


def has_fields(override: str) -> bool:
    """Whether an override says something else for each task."""
    return _FIELD.search(override.partition("=")[2]) is not None


def fill(override: str, fields: Mapping[str, JsonValue]) -> str:
    """An override for one task.

    ``path={field}`` sets the value of the field, be it text, a number or a list. Within a list or a mapping, each ``{field}``
    is such a value. Within other text it is put in as text. Whatever a field says, it sets nothing else.

    Args:
        override: As ``path=value``.
        fields: What the task says.

    Raises:
        TemplateError: If it names a field that is not there.
    """
    target, separator, value = override.partition("=")
    value = value.strip()
    if not has_fields(override):
        return override

    def field(found: re.Match[str]) -> JsonValue:
        name = found[1]
        if name not in fields:
            known = ", ".join(fields)
            raise TemplateError(f"-s {target} asks for the field {name!r}, and the task has {known}")
        return fields[name]

    if _FIELD.fullmatch(value) or value.startswith(_FLOW):
        filled = _FIELD.sub(lambda found: _json(field(found)), value)
    else:
        filled = _json(_FIELD.sub(lambda found: _text(field(found)), value))
    return f"{target}{separator}{filled}"


def _json(value: JsonValue) -> str:
    # pairs of surrogates, by which JSON escapes what is beyond 16 bits, are none to YAML
    text = json.dumps(value, ensure_ascii=False)
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
