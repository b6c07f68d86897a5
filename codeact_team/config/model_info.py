"""What a model can do. AutoGen's clients look it up in a table of models, and refuse models that are not there."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

from autogen_core.models import ModelFamily, ModelInfo

from codeact_team.autogen_internals import ComponentClass, listed_model, model_table

_ABILITIES = ("vision", "function_calling", "json_output", "structured_output")


def _info(*abilities: str, **more: bool) -> ModelInfo:
    able = {ability: ability in abilities for ability in _ABILITIES}
    # the client goes by the model's name then
    return ModelInfo(**able, **more, family=ModelFamily.UNKNOWN)  # pyright: ignore[reportArgumentType]


EVERYTHING = _info(*_ABILITIES, multiple_system_messages=True)

_BY_NAME: Mapping[re.Pattern[str], ModelInfo] = {
    re.compile(r"(?:gpt(?!-oss)|chatgpt|codex|o\d)\b"): EVERYTHING,
    re.compile(r"gemini\b"): _info(*_ABILITIES, multiple_system_messages=False),
    re.compile(r"claude\b"): _info("vision", "function_calling", multiple_system_messages=True),
}
"""By the beginning of the name, what each maker's newer models have in common."""
_SERVED = _info("function_calling", "json_output")
"""What servers of other models do with most of them."""

_MAKER = re.compile(r"^(?:ft:|.*[/.](?=\D))")
"""What gateways and fine-tuning put before a name: ``openai/gpt-5.1``, ``us.anthropic.claude-...``."""


def needs_info(component: ComponentClass, config: Mapping[str, Any]) -> bool:
    """Whether this is a model client that would not know what its model can do."""
    given = config.get("model_info") or config.get("model_capabilities")
    return not given and model_table(component) is not None and listed_info(component, config) is None


def listed_info(component: ComponentClass, config: Mapping[str, Any]) -> ModelInfo | None:
    """What the table of a client says of its model."""
    model = config.get("model")
    return listed_model(component, model) if isinstance(model, str) else None


def assumed_info(component: ComponentClass, config: Mapping[str, Any]) -> ModelInfo | None:
    """What a model that is in no table can most probably do: by its name, or because it has a server of its own."""
    if (by_name := info_by_name(config["model"])) is not None:
        return by_name
    served = component.__name__.startswith("Ollama") or config.get("azure_endpoint") or config.get("base_url")
    return _SERVED if served or os.environ.get("OPENAI_BASE_URL") else None


def info_by_name(model: object) -> ModelInfo | None:
    """What a maker's newer models have in common, if a model's name tells the maker."""
    name = _MAKER.sub("", str(model))
    return next((info for pattern, info in _BY_NAME.items() if pattern.match(name)), None)


def abilities(info: ModelInfo) -> str:
    """What a model can do, in the names of the config's keys."""
    return ", ".join(ability for ability in _ABILITIES if info.get(ability))
