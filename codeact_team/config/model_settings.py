"""What it takes to give a model client another model, or another server."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from codeact_team.autogen_internals import ComponentClass
from codeact_team.config.model_info import info_by_name, listed_info

_SERVER = ("base_url", "host", "azure_endpoint", "endpoint")
"""What the clients of AutoGen call the URL of their server."""
_ABOUT_THE_MODEL = ("model_info", "model_capabilities")


def field_of_client(fields: Container[str], setting: str) -> str | None:
    """What a client with these fields calls a setting; ``None`` where it has none."""
    names = _SERVER if setting == "base_url" else (setting,)
    return next((name for name in names if name in fields), None)


def change_client(component: ComponentClass, config: dict[str, Any], setting: str) -> None:
    """Let the rest of a client's config fit a setting that has been changed."""
    if setting == "model":
        # what a config says of one model holds for another one on its server, unless that is known better
        without = {key: value for key, value in config.items() if key not in _ABOUT_THE_MODEL}
        if listed_info(component, without) or info_by_name(config["model"]):
            for key in _ABOUT_THE_MODEL:
                config.pop(key, None)


def why_not(component: ComponentClass) -> str | None:
    """Why there is nothing to be set in a client that asks no model; ``None`` where no reason is known."""
    if component.__module__.startswith("autogen_ext.models.replay."):
        return "its answers are recorded, and no model is asked; run `team` or `codeact`, or another config with a model"
    return None
