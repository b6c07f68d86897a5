"""Model clients in a document: what their models can do, and where their servers and keys are."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from autogen_core.models import ModelFamily, ModelInfo

from codeact_team.config.document import Resolved
from codeact_team.core.autogen_internals import ComponentClass, listed_model, model_table
from codeact_team.core.providers import schema_of

_ABILITIES = ("vision", "function_calling", "json_output", "structured_output")


def _info(*abilities: str, **more: bool) -> ModelInfo:
    able = {ability: ability in abilities for ability in _ABILITIES}
    # with this family the client goes by the model's name
    return ModelInfo(**able, **more, family=ModelFamily.UNKNOWN)  # pyright: ignore[reportArgumentType]


EVERYTHING = _info(*_ABILITIES, multiple_system_messages=True)

_BY_NAME: Mapping[re.Pattern[str], ModelInfo] = {
    re.compile(r"(?:gpt(?!-oss)|chatgpt|codex|o\d)\b"): EVERYTHING,
    re.compile(r"gemini\b"): _info(*_ABILITIES, multiple_system_messages=False),
    re.compile(r"claude\b"): _info("vision", "function_calling", multiple_system_messages=True),
}
"""By the beginning of the model's name, the abilities that each vendor's newer models share."""
_SERVED = _info("function_calling", "json_output")
"""The abilities that most servers of other models support."""

_MAKER = re.compile(r"^(?:ft:|.*[/.](?=\D))")
"""The prefix that gateways and fine-tuning put before a name: ``openai/gpt-5.1``, ``us.anthropic.claude-...``."""


def needs_info(component: ComponentClass, config: Mapping[str, Any]) -> bool:
    """Whether this is a model client that does not know what its model can do."""
    given = config.get("model_info") or config.get("model_capabilities")
    return not given and model_table(component) is not None and listed_info(component, config) is None


def listed_info(component: ComponentClass, config: Mapping[str, Any]) -> ModelInfo | None:
    """The abilities of a client's model according to the client's table."""
    model = config.get("model")
    return listed_model(component, model) if isinstance(model, str) else None


def assumed_info(component: ComponentClass, config: Mapping[str, Any]) -> ModelInfo | None:
    """The likely abilities of a model that is in no table: by its name, or because it has its own server."""
    if (by_name := _info_by_name(config["model"])) is not None:
        return by_name
    served = component.__name__.startswith("Ollama") or config.get("azure_endpoint") or config.get("base_url")
    return _SERVED if served or os.environ.get("OPENAI_BASE_URL") else None


def _info_by_name(model: object) -> ModelInfo | None:
    """The abilities that a vendor's newer models share, if the model's name shows the vendor."""
    name = _MAKER.sub("", str(model))
    return next((info for pattern, info in _BY_NAME.items() if pattern.match(name)), None)


def abilities(info: ModelInfo) -> str:
    """The abilities of a model, named as in a config."""
    return ", ".join(ability for ability in _ABILITIES if info.get(ability))


SERVER_FIELDS = ("base_url", "host", "azure_endpoint", "endpoint")
"""The fields in which AutoGen's clients have the URL of their server."""
_REPLAY = "autogen_ext.models.replay."
_BLANK = re.compile(r"\s")

NO_URL = "the URL of a server begins with http:// or https://, followed by the server's name"
"""The error about a malformed URL."""
NO_KEY = "none"
"""The key for a server that needs none: clients insist on one."""

_OPENAI = "OpenAIChatCompletionClient"
_KEYS: Mapping[str, tuple[str, ...]] = {
    _OPENAI: ("OPENAI_API_KEY",),
    "AzureOpenAIChatCompletionClient": ("AZURE_OPENAI_API_KEY", "AZURE_OPENAI_AD_TOKEN"),
    "AnthropicChatCompletionClient": ("ANTHROPIC_API_KEY",),
}
"""The variables from which a client reads its key, by the name of its class."""
_KEYS_BY_MODEL = {"gemini-": "GEMINI_API_KEY", "claude-": "ANTHROPIC_API_KEY", "Llama-": "LLAMA_API_KEY"}
"""The variables that AutoGen's client for OpenAI reads first, by the beginnings of other vendors' model names."""


def asks_no_model(component: ComponentClass) -> bool:
    """Whether a client's answers are recorded."""
    return component.__module__.startswith(_REPLAY)


def server_of(component: ComponentClass, config: Mapping[str, Any], environ: Mapping[str, str]) -> str | None:
    """The URL of the server in a client's settings or its environment; ``None`` if there is none."""
    given = next((config[name] for name in SERVER_FIELDS if config.get(name)), None)
    if given is None and component.__name__ == _OPENAI:
        given = environ.get("OPENAI_BASE_URL")
    return str(given) if given else None


def without_credentials(url: str) -> str | None:
    """The URL of a server without user, password and query; ``None`` if it is malformed."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname or _BLANK.search(url):
        return None
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def keys_for_a_server(provider: str, config: Mapping[str, Any]) -> Sequence[str]:
    """The environment variables from which a client reads a key for a server that its config names."""
    if config.get("api_key") or not any(config.get(name) for name in SERVER_FIELDS):
        return ()
    return key_variables(provider.rpartition(".")[2], config)


def key_variables(client: str, config: Mapping[str, Any]) -> Sequence[str]:
    """The environment variables from which a client of this class reads its key, if it is given none; empty if unknown."""
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
    """Return a sentence about a client's missing key and the remedy; ``None`` if it has a key, or this is not known."""
    variables = key_variables(component.__name__, config)
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


_ABOUT_THE_MODEL = ("model_info", "model_capabilities")


def field_of_client(fields: Container[str], setting: str) -> str | None:
    """The name of a setting among a client's fields; ``None`` if it has no such setting."""
    names = SERVER_FIELDS if setting == "base_url" else (setting,)
    return next((name for name in names if name in fields), None)


def objection_of_client(
    component: ComponentClass, config: Mapping[str, Any], setting: str, value: object
) -> str | None:
    """Return the reason for which a setting of a client cannot be changed; ``None`` if it can."""
    if asks_no_model(component):
        return "its answers are recorded, and no model is asked; `team` and `team-confined` ask one"
    if setting == "model" and config.get("azure_deployment"):
        return "its `azure_deployment` decides which model is asked; set that by -s"
    # the value stays out of the message: a URL may hold a password
    if setting == "base_url" and without_credentials(str(value)) is None:
        return NO_URL
    return None


def change_client(
    component: ComponentClass, config: dict[str, Any], setting: str, set_before: Container[str]
) -> Mapping[str, Resolved | None]:
    """Adapt the rest of a client's changed config to a changed setting, except the keys that were ``set_before``.

    Returns:
        The other keys that are changed, each with the reference that its new value was written with, if any.
    """
    if setting == "model":
        # the abilities in a config are kept for another model on its server, unless that model is known
        without = {key: value for key, value in config.items() if key not in _ABOUT_THE_MODEL}
        if listed_info(component, without) or _info_by_name(config["model"]):
            outdated = [key for key in _ABOUT_THE_MODEL if key in config and key not in set_before]
            for key in outdated:
                del config[key]
            return dict.fromkeys(outdated)
    variables = key_variables(component.__name__, config)
    if setting == "base_url" and "base_url" in config and missing_key(component, config, os.environ):
        # most private servers need no key, but the client insists on one
        config["api_key"] = NO_KEY
        return {"api_key": Resolved(NO_KEY, f"${{{variables[-1]}:-{NO_KEY}}}", {})}
    return {}
