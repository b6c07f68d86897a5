"""Values from elsewhere: the environment, the command line, a task's fields.

References to the environment: ``${NAME}`` and ``${NAME:-default}``. ``$${`` stands for a literal ``${``. What a reference
resolves to is not searched for further ones, nor is data that is put into a text. What each text was made from stays with the
document, so that a dump writes the reference and never the value.

Fields: ``{field}`` in an override stands for data, such as what a task of a batch says. Data is put in after YAML was parsed,
and after references to the environment were resolved: nothing in it is read as either. So whatever a field says, it sets its
value and nothing else.

Overrides: ``config.participants.executor.config.max_retries_on_error=3`` changes one value. A step of the path is a key, an
index of a list, or the name of a component in a list (its ``config.name``). The value is YAML: a scalar, or a list or mapping
in flow style; an empty one is null. Whether it fits is for the schema to say.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from pydantic import JsonValue

from codeact_team.config import yaml12
from codeact_team.config.document import (
    Document,
    Problem,
    Resolved,
    TextWithData,
    dotted,
    escape,
    in_words,
    is_in,
    require_size,
)
from codeact_team.config.yaml12 import Path
from codeact_team.core.providers import did_you_mean
from codeact_team.errors import ConfigError

_REFERENCE = re.compile(
    r"(?P<escape>\$\$\{)|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|(?P<malformed>\$\{[^}\n]{0,40}\}?)"
)


class UnresolvedError(Exception):
    """A reference that cannot be resolved; its text says which, and what to do."""


def resolve_text(written: str, environ: Mapping[str, str]) -> Resolved:
    """Resolve the references in a text.

    Raises:
        UnresolvedError: If a variable without a default is not set, or a reference is malformed.
    """
    values: dict[str, str] = {}
    referred = False

    def value_of(match: re.Match[str]) -> str:
        nonlocal referred
        if match["escape"]:
            return "${"
        if match["malformed"]:
            raise UnresolvedError(
                f"{match[0]!r} is no reference: write ${{NAME}} or ${{NAME:-default}}, and $${{ for a literal ${{"
            )
        referred = True
        value = environ.get(match["name"])
        # as in a shell, a default also stands in for an empty value
        if value or (value is not None and match["default"] is None):
            values[match["name"]] = value
            return value
        if match["default"] is None:
            raise UnresolvedError(
                f"the environment variable {match['name']} is not set; set it, "
                f"or give a default: ${{{match['name']}:-default}}"
            )
        return match["default"]

    return Resolved(_REFERENCE.sub(value_of, written), written if referred else None, values)


def _resolve_with_data(text: TextWithData, environ: Mapping[str, str]) -> Resolved:
    """Resolve the references in what a person wrote of a text, and then put in the data, where nothing is resolved."""
    parts = [
        Resolved(part, None, {}) if number % 2 else resolve_text(part, environ)
        for number, part in enumerate(text.parts)
    ]
    whole = "".join(part.text for part in parts)
    if all(part.written is None for part in parts):
        return Resolved(whole, None, {})
    written = "".join(part.written or escape(part.text) for part in parts)
    # a config is kept as it is written, and has to say the same when it is read again
    if not _stands_for(written, whole, environ):
        raise UnresolvedError("a field that says $ cannot stand beside a reference to the environment")
    values = {name: value for part in parts for name, value in part.values.items()}
    return Resolved(whole, written, values)


def _stands_for(written: str, text: str, environ: Mapping[str, str]) -> bool:
    try:
        return resolve_text(written, environ).text == text
    except UnresolvedError:
        return False


def resolve_references(document: Document, environ: Mapping[str, str]) -> tuple[Document, list[Problem]]:
    """The document with the references in all its text resolved, and what could not be."""
    references: dict[Path, Resolved] = {}
    problems: list[Problem] = []

    def resolve(value: Any, path: Path) -> Any:
        if isinstance(value, dict):
            mapping = cast(dict[str, Any], value)
            return {key: resolve(item, (*path, key)) for key, item in mapping.items()}
        if isinstance(value, list):
            return [resolve(item, (*path, index)) for index, item in enumerate(cast(list[Any], value))]
        try:
            if isinstance(value, TextWithData):
                resolved = _resolve_with_data(value, environ)
            elif isinstance(value, str):
                resolved = resolve_text(value, environ)
            else:
                return value
        except UnresolvedError as error:
            problems.append(Problem(path, str(error)))
            return value if isinstance(value, str) else "".join(value.parts)
        if resolved.written is not None:
            references[path] = resolved
        return resolved.text

    data = resolve(document.data, ())
    return replace(document, data=data, references=references), problems


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


def apply_overrides(
    document: Document, overrides: Sequence[str], fields: Mapping[str, JsonValue] | None = None
) -> Document:
    """The document with each of ``overrides`` applied in turn.

    Args:
        document: The document.
        overrides: Each as ``path=value``.
        fields: What ``{field}`` in a value stands for, of all fields that are named; ``None`` if it is no field.

    Raises:
        ConfigError: If one is malformed, or sets something that has no place in the document.
    """
    if not overrides:
        return document
    data = copy.deepcopy(document.data)
    origins = dict(document.overrides)
    for text in overrides:
        steps, value = _parse(text, fields)
        # the value stays out of all messages: it may be a secret
        origin = f"-s {'.'.join(steps)}"
        path = _set(data, steps, value, origin)
        require_size(data, origin)
        origins = {other: told for other, told in origins.items() if not is_in(other, path)} | {path: origin}
    return replace(document, data=data, overrides=origins)


def _parse(text: str, fields: Mapping[str, JsonValue] | None) -> tuple[list[str], Any]:
    target, separator, value = text.partition("=")
    steps = [step.strip() for step in target.split(".")]
    if not separator or not all(steps):
        raise ConfigError("an override is written path.to.field=value", file=f"-s {target}")
    try:
        if fields is not None and field_names(text):
            return steps, parse_with_fields(value, fields)
        return steps, yaml12.parse_value(value)
    except ConfigError as error:
        raise ConfigError(error.message, file=f"-s {target}") from None
    except yaml12.YamlError:
        # what is wrong with it cannot be told without it
        raise ConfigError(
            "the value cannot be read as YAML; text may need quotes", file=f"-s {target}"
        ) from None


def _set(data: dict[str, Any], steps: Sequence[str], value: Any, origin: str) -> Path:
    parent: Any = data
    path: Path = ()
    for step in steps[:-1]:
        key = _existing(parent, step, path, origin)
        path, parent = (*path, key), parent[key]
    last = steps[-1]
    # a mapping takes new keys; everything else has to be there
    key = last if isinstance(parent, dict) else _existing(parent, last, path, origin)
    parent[key] = value
    return (*path, key)


def _existing(parent: Any, step: str, path: Path, origin: str) -> str | int:
    where = dotted(path) or "the document"
    if isinstance(parent, dict):
        keys = cast(dict[str, Any], parent)
        if step in keys:
            return step
        known = f" (it has {', '.join(keys) or 'no keys'})"
        raise ConfigError(f"{where} has no key {step!r}{did_you_mean(step, keys) or known}", file=origin)
    if isinstance(parent, list):
        return _in_list(cast(list[Any], parent), step, where, origin)
    raise ConfigError(f"{where} is {in_words(parent)}, which has no {step!r}", file=origin)


def _in_list(items: list[Any], step: str, where: str, origin: str) -> int:
    if step.isascii() and step.isdigit():
        if len(step) < 10 and int(step) < len(items):
            return int(step)
        raise ConfigError(f"{where} has {len(items)} items, counted from 0; there is no {step}", file=origin)
    names = [_name(item) for item in items]
    if names.count(step) == 1:
        return names.index(step)
    if step in names:
        raise ConfigError(f"{where} has several items named {step!r}; use the index", file=origin)
    known = [name for name in names if name is not None]
    named = f" (it has {', '.join(known)})" if known else f"; use an index from 0 to {len(items) - 1}"
    raise ConfigError(f"{where} has no item named {step!r}{did_you_mean(step, known) or named}", file=origin)


def _name(item: Any) -> str | None:
    match item:
        case {"config": {"name": str(name)}}:
            return name
        case _:
            return None
