"""The server that a model client asks, and the key that it needs for that."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from codeact_team.autogen_internals import ComponentClass
from codeact_team.providers import schema_of

SERVER_FIELDS = ("base_url", "host", "azure_endpoint", "endpoint")
"""What the clients of AutoGen call the URL of their server."""
_REPLAY = "autogen_ext.models.replay."
_BLANK = re.compile(r"\s")

NO_URL = "the URL of a server begins with http:// or https://, and goes on with its name"
"""What is wrong with a URL that is none."""
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


def asks_no_model(component: ComponentClass) -> bool:
    """Whether a client's answers are recorded."""
    return component.__module__.startswith(_REPLAY)


def server_of(component: ComponentClass, config: Mapping[str, Any], environ: Mapping[str, str]) -> str | None:
    """The address of the server that a client is told to ask; ``None`` where it is not told."""
    given = next((config[name] for name in SERVER_FIELDS if config.get(name)), None)
    if given is None and component.__name__ == _OPENAI:
        given = environ.get("OPENAI_BASE_URL")
    return str(given) if given else None


def without_credentials(url: str) -> str | None:
    """The URL of a server, fit to be shown; ``None`` where it is none."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname or _BLANK.search(url):
        return None
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def key_variables(component: ComponentClass, config: Mapping[str, Any]) -> Sequence[str]:
    """The variables of the environment of which a client needs one, unless it is given a key; none where not known."""
    return _key_variables(component.__name__, config)


def keys_for_a_server(provider: str, config: Mapping[str, Any]) -> Sequence[str]:
    """The variables of the environment of which a client reads a key, by itself, for a server that its config names."""
    if config.get("api_key") or not any(config.get(name) for name in SERVER_FIELDS):
        return ()
    return _key_variables(provider.rpartition(".")[2], config)


def _key_variables(client: str, config: Mapping[str, Any]) -> Sequence[str]:
    if config.get("azure_ad_token") or config.get("azure_ad_token_provider"):
        return ()
    names = _KEYS.get(client, ())
    if client == _OPENAI:
        model = str(config.get("model"))
        return [*(key for begin, key in _KEYS_BY_MODEL.items() if model.startswith(begin)), *names]
    return names


def missing_key(
    component: ComponentClass, config: Mapping[str, Any], environ: Mapping[str, str]
) -> str | None:
    """Why a client has no key although it needs one, and what to do; ``None`` where it has, or nothing is known."""
    variables = key_variables(component, config)
    if not variables or config.get("api_key") or any(environ.get(name) for name in variables):
        return None
    several = len(variables) > 1
    names = " and ".join(variables)
    lacking = f"{names} {'are' if several else 'is'} not set: set {'one' if several else 'it'}"
    instead = ""
    if config.get("base_url"):
        instead = ", or to anything if the server wants none"
    elif "base_url" in schema_of(component).model_fields:
        instead = ", or give a server that wants none by --base-url"
    return f"the model needs a key, and {lacking} to your key{instead}"
