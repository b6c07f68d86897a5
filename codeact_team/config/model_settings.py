"""What it takes to give a model client another model, or another server."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from codeact_team.autogen_internals import ComponentClass
from codeact_team.config.document import Resolved
from codeact_team.config.environment import resolve_text
from codeact_team.config.model_info import info_by_name, listed_info

_SERVER = ("base_url", "host", "azure_endpoint", "endpoint")
"""What the clients of AutoGen call the URL of their server."""
_URL = re.compile(r"https?://\S+", re.IGNORECASE)
_ABOUT_THE_MODEL = ("model_info", "model_capabilities")
_REPLAY = "autogen_ext.models.replay."

NO_KEY = "none"
"""Stands for a key where a server wants none, as clients insist on one."""

_OPENAI = "OpenAIChatCompletionClient"
_KEYS: Mapping[str, tuple[str, ...]] = {
    _OPENAI: ("OPENAI_API_KEY",),
    "AzureOpenAIChatCompletionClient": ("AZURE_OPENAI_API_KEY", "AZURE_OPENAI_AD_TOKEN"),
    "AnthropicChatCompletionClient": ("ANTHROPIC_API_KEY",),
}
"""The variables of which a client, by the name of its class, reads its key."""
_KEYS_BY_MODEL = {"gemini-": "GEMINI_API_KEY", "claude-": "ANTHROPIC_API_KEY", "Llama-": "LLAMA_API_KEY"}
"""Which variables AutoGen's client for OpenAI reads first for the models of others, by the beginnings of their names."""


def field_of_client(fields: Container[str], setting: str) -> str | None:
    """What a client with these fields calls a setting; ``None`` where it has none."""
    names = _SERVER if setting == "base_url" else (setting,)
    return next((name for name in names if name in fields), None)


def asks_no_model(component: ComponentClass) -> bool:
    """Whether a client's answers are recorded."""
    return component.__module__.startswith(_REPLAY)


def server_of(component: ComponentClass, config: Mapping[str, Any], environ: Mapping[str, str]) -> str | None:
    """The address of the server that a client is told to ask, without credentials in it; ``None`` where it is not told."""
    given = next((config[name] for name in _SERVER if config.get(name)), None)
    if given is None and component.__name__ == _OPENAI:
        given = environ.get("OPENAI_BASE_URL")
    if not given:
        return None
    url = urlsplit(str(given))
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"


def key_variables(component: ComponentClass, config: Mapping[str, Any]) -> Sequence[str]:
    """The variables of the environment of which a client needs one, unless it is given a key; none where not known."""
    if config.get("azure_ad_token") or config.get("azure_ad_token_provider"):
        return ()
    names = _KEYS.get(component.__name__, ())
    if component.__name__ == _OPENAI:
        model = str(config.get("model"))
        return [*(key for begin, key in _KEYS_BY_MODEL.items() if model.startswith(begin)), *names]
    return names


def objection_of_client(
    component: ComponentClass, config: Mapping[str, Any], setting: str, value: object
) -> str | None:
    """Why a client cannot be given a setting, if that is known."""
    if asks_no_model(component):
        return "its answers are recorded, and no model is asked; `team` and `team-confined` ask one"
    if setting == "model" and config.get("azure_deployment"):
        return "its `azure_deployment` decides which model is asked; set that by -s"
    # the value stays out of the message: a URL may hold a password
    if setting == "base_url" and not (isinstance(value, str) and _URL.fullmatch(value)):
        return "the URL of a server begins with http:// or https://"
    return None


def change_client(
    component: ComponentClass, config: dict[str, Any], setting: str
) -> Mapping[str, Resolved | None]:
    """Let the rest of a client's config fit a setting that has been changed.

    Returns:
        The other keys that are not as before, each with the reference that it stands for, if any.
    """
    if setting == "model":
        # what a config says of one model holds for another one on its server, unless that is known better
        without = {key: value for key, value in config.items() if key not in _ABOUT_THE_MODEL}
        if listed_info(component, without) or info_by_name(config["model"]):
            removed = [key for key in _ABOUT_THE_MODEL if config.pop(key, None)]
            return dict.fromkeys(removed)
    if setting == "base_url" and component.__name__ == _OPENAI:
        key = resolve_text(f"${{OPENAI_API_KEY:-{NO_KEY}}}", os.environ)
        # most servers of one's own want no key, and the client insists on one
        if not key.values and not config.get("api_key"):
            config["api_key"] = key.text
            return {"api_key": key}
    return {}
