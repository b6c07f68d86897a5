"""Nulls that AutoGen's dumps leave out, although its schemas require the keys.

``TokenUsageTermination(max_total_token=1000)`` is dumped without its two other limits, and its schema refuses that.
"""

from __future__ import annotations

import copy
from typing import Any

from pydantic import BaseModel, ValidationError

from codeact_team.config.document import Path
from codeact_team.config.schema_errors import place_of


def validate(schema: type[BaseModel], config: dict[str, Any], context: object = None) -> None:
    """Check a config against its schema, unknown keys refused, and leave it as it is.

    Raises:
        ValidationError: If it does not fit.
    """
    # validators may change what they are given
    schema.model_validate(copy.deepcopy(config), extra="forbid", context=context)


def with_nulls(schema: type[BaseModel], config: dict[str, Any]) -> dict[str, Any]:
    """The config with null for each required key that is missing and may be null."""
    missing = {place for place, kind in _errors(schema, config) if kind == "missing"}
    if not missing:
        return config
    config = copy.deepcopy(config)
    for place in missing:
        _parent(config, place)[place[-1]] = None
    refused = {place for place, _ in _errors(schema, config)}
    for place in missing & refused:
        del _parent(config, place)[place[-1]]
    return config


def _errors(schema: type[BaseModel], config: dict[str, Any]) -> list[tuple[Path, str]]:
    try:
        validate(schema, config)
    except ValidationError as error:
        return [(place_of(details, config), details["type"]) for details in error.errors(include_url=False)]
    return []


def _parent(config: Any, place: Path) -> Any:
    for step in place[:-1]:
        config = config[step]
    return config
