"""Overrides: ``config.participants.executor.config.max_retries_on_error=3`` changes one value of a document.

A step of the path is a key, an index of a list, or the name of a component in a list (its ``config.name``). The value
is YAML: a scalar, or a list or mapping in flow style; an empty one is null. Whether it fits is for the schema to say.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from pydantic import JsonValue

from codeact_team.config import yaml12
from codeact_team.config.document import Document, Path, dotted, in_words, is_in, require_size
from codeact_team.config.fields import field_names, parse_with_fields
from codeact_team.errors import ConfigError
from codeact_team.suggestions import did_you_mean


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
