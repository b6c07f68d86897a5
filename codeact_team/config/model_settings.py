"""What it takes to give a model client another model, or another server."""

from __future__ import annotations

import os
from collections.abc import Container, Mapping
from typing import Any

from codeact_team.autogen_internals import ComponentClass
from codeact_team.config.document import Resolved
from codeact_team.config.model_access import (
    NO_KEY,
    NO_URL,
    SERVER_FIELDS,
    asks_no_model,
    key_variables,
    missing_key,
    without_credentials,
)
from codeact_team.config.model_info import info_by_name, listed_info

_ABOUT_THE_MODEL = ("model_info", "model_capabilities")


def field_of_client(fields: Container[str], setting: str) -> str | None:
    """What a client with these fields calls a setting; ``None`` where it has none."""
    names = SERVER_FIELDS if setting == "base_url" else (setting,)
    return next((name for name in names if name in fields), None)


def objection_of_client(
    component: ComponentClass, config: Mapping[str, Any], setting: str, value: object
) -> str | None:
    """Why a client cannot be given a setting, if that is known."""
    if asks_no_model(component):
        return "its answers are recorded, and no model is asked; `team` and `team-confined` ask one"
    if setting == "model" and config.get("azure_deployment"):
        return "its `azure_deployment` decides which model is asked; set that by -s"
    # the value stays out of the message: a URL may hold a password
    if setting == "base_url" and without_credentials(str(value)) is None:
        return NO_URL
    return None


def change_client(
    component: ComponentClass, config: dict[str, Any], setting: str, said: Container[str]
) -> Mapping[str, Resolved | None]:
    """Let the rest of a client's config, but what was ``said`` by an override, fit a setting that has been changed.

    Returns:
        The other keys that are not as before, each with the reference that it stands for, if any.
    """
    if setting == "model":
        # what a config says of one model holds for another one on its server, unless that is known better
        without = {key: value for key, value in config.items() if key not in _ABOUT_THE_MODEL}
        if listed_info(component, without) or info_by_name(config["model"]):
            outdated = [key for key in _ABOUT_THE_MODEL if key in config and key not in said]
            for key in outdated:
                del config[key]
            return dict.fromkeys(outdated)
    variables = key_variables(component, config)
    if setting == "base_url" and "base_url" in config and missing_key(component, config, os.environ):
        # most servers of one's own want no key, and the client insists on one
        config["api_key"] = NO_KEY
        return {"api_key": Resolved(NO_KEY, f"${{{variables[-1]}:-{NO_KEY}}}", {})}
    return {}
