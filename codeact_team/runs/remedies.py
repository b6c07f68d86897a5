"""Remedies for a run without success: raise the limit that ended it, change a setting, or change something and begin anew."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeGuard

from codeact_team.agents.agent_config import ToolLimits
from codeact_team.agents.codeact.config import Limits
from codeact_team.agents.observations import Ending
from codeact_team.config.components import described_components
from codeact_team.config.document import Document, dotted
from codeact_team.journal.result import AgentEnding, RunResult, WrongSetting
from codeact_team.runs.limits import CONDITIONS
from codeact_team.runs.run import TIME_LIMIT

_TIME_LIMIT = re.compile(rf"{TIME_LIMIT} (?P<limit>[\d.e+]+) seconds is reached")
_DEFAULTS = {
    Ending.MAX_STEPS: Limits.model_fields["max_steps"].default,
    Ending.MAX_SECONDS: None,
    Ending.MAX_TOKENS: None,
}
"""The limits of an agent, each with its default; the setting is called as the ending."""
_MAX_CALLS: int = ToolLimits.model_fields["max_calls"].default
_OTHER_MODEL = "run it again with --model NAME"
_LARGEST = 1e15
_MAX_TOKENS = 8192
"""The token limit of a reply that is proposed where the config sets none."""


@dataclass(frozen=True)
class _Part:
    """A component of a config."""

    path: str
    provider: str
    settings: Mapping[str, Any]

    def at(self, setting: str) -> str:
        """The path of one of its settings, for -s."""
        return f"{self.path}.config.{setting}".removeprefix(".")


def higher_limit(document: Document, result: RunResult) -> Sequence[str]:
    """The arguments of `resume` that raise the limits by which a run has ended; none if these are not found in its config.

    Both may be of somebody else, and hostile.
    """
    reason = result.stop_reason or ""
    if (time := _TIME_LIMIT.match(reason)) is not None and (seconds := _number(time["limit"])):
        return ("--timeout", _doubled(seconds))
    parts = list(_parts(document))
    changes = list(dict.fromkeys(_higher_limits_of_team(parts, reason)))
    if not changes and result.cause is not None:
        agent = _named(parts, result.cause.agent)
        changes = [] if agent is None else list(_higher_limits_of(agent, result.cause.ending, result))
    return [argument for change in changes for argument in ("-s", change)]


def _higher_limits_of_team(parts: Sequence[_Part], reason: str) -> Iterator[str]:
    # a team may have reached several at once
    for pattern, provider, setting in CONDITIONS:
        if (reached := re.search(pattern, reason)) is None:
            continue
        named = reached.groupdict()
        spent, limit = (_number(named[key]) if named.get(key) else None for key in ("spent", "limit"))
        for part in parts:
            value = part.settings.get(setting)
            if part.provider.endswith(provider) and _is_limit(value):
                if value == limit if limit is not None else value <= (spent or 0):
                    yield f"{part.at(setting)}={_doubled(max(value, spent or 0))}"


def _higher_limits_of(agent: _Part, ending: Ending, result: RunResult) -> Iterator[str]:
    limit = agent.settings.get(ending.value, _DEFAULTS.get(ending))
    if ending is Ending.MAX_CALLS:
        match agent.settings.get("tool_limits"):
            case None:
                # only the last step of a path may be a new key
                yield f"{agent.at('tool_limits')}={{max_calls: {_doubled(_MAX_CALLS)}}}"
            case {"max_calls": most} if _is_limit(most):
                yield f"{agent.at('tool_limits')}.max_calls={_doubled(most)}"
            case _:
                yield f"{agent.at('tool_limits')}.max_calls={_doubled(_MAX_CALLS)}"
    elif ending in _DEFAULTS and _is_limit(limit):
        usage = result.usage
        used = usage.prompt_tokens + usage.completion_tokens if ending is Ending.MAX_TOKENS else 0
        yield f"{agent.at(ending.value)}={_doubled(max(limit, used))}"


def another_setting(document: Document, wrong: WrongSetting) -> Sequence[str]:
    """The arguments of `resume` that change a setting in all model clients with that model; none if these are not found."""
    clients = [part for part in _parts(document) if isinstance(part.settings.get("model"), str)]
    if len({part.settings["model"] for part in clients}) > 1:
        clients = [part for part in clients if part.settings["model"] == wrong.model]
    placeholder = "NAME" if wrong.name == "model" else "URL"
    return [argument for part in clients for argument in ("-s", f"{part.at(wrong.name)}={placeholder}")]


def advice(document: Document, result: RunResult) -> str | None:
    """Advice for a new run, where a higher limit does not help this one; ``None`` if there is none."""
    match result.cause:
        case AgentEnding(ending=Ending.CUT_OFF):
            return _advice_on_cut_off(_client_of(document, result.cause.agent))
        case AgentEnding(ending=Ending.UNREADABLE_VERDICT):
            return _advice_on_verdicts(_client_of(document, result.cause.agent))
        case AgentEnding(ending=Ending.REFUSED):
            return f"another wording of the task may help, or another model: {_OTHER_MODEL}"
        case AgentEnding(ending=Ending.NO_SUCH_TOOL):
            return f"this model calls tools where it should write code; another one may not: {_OTHER_MODEL}"
        case AgentEnding(ending=Ending.NO_ANSWER | Ending.STUCK):
            return f"another model may come further: {_OTHER_MODEL}"
        case _:
            return None


def _advice_on_cut_off(client: _Part | None) -> str:
    context = "a local server may also limit the context, as Ollama does by OLLAMA_CONTEXT_LENGTH"
    if client is None or not client.provider.startswith(
        ("autogen_ext.models.openai.", "autogen_ext.models.anthropic.")
    ):
        return f"longer replies may help: raise the token limit of the model client; {context}"
    setting = "max_completion_tokens" if "max_completion_tokens" in client.settings else "max_tokens"
    limit = client.settings.get(setting)
    most = _doubled(limit) if _is_limit(limit) else _MAX_TOKENS
    option = shlex.join(["-s", f"{client.at(setting)}={most}"])
    return f"longer replies may help: run it again with {option}; {context}"


def _advice_on_verdicts(client: _Part | None) -> str:
    if client is None:
        return f"a model with structured output may help: {_OTHER_MODEL}"
    option = shlex.join(["-s", f"{client.at('model')}=NAME"])
    text = f"a model with structured output may help: run it again with {option}"
    info = client.settings.get("model_info")
    if isinstance(info, dict) and not info.get("structured_output"):  # pyright: ignore[reportUnknownMemberType]
        option = shlex.join(["-s", f"{client.at('model_info')}.structured_output=true"])
        text += f", or, if the server can do that, {option}"
    return text


def _client_of(document: Document, agent: str) -> _Part | None:
    """The model client of an agent."""
    parts = list(_parts(document))
    owner = _named(parts, agent)
    path = owner and owner.at("model_client")
    return next((part for part in parts if part.path == path), None)


def _named(parts: Sequence[_Part], agent: str) -> _Part | None:
    found = [part for part in parts if part.settings.get("name") == agent]
    return found[0] if len(found) == 1 else None


def _parts(document: Document) -> Iterator[_Part]:
    for path, value in described_components(document.data):
        if isinstance(value["config"], dict):
            yield _Part(dotted(path), value["provider"], value["config"])  # pyright: ignore[reportUnknownArgumentType]


def _number(text: str) -> float | None:
    with suppress(ValueError):
        return float(text.replace(",", ""))
    return None


def _is_limit(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and 0 < value < _LARGEST


def _doubled(limit: float) -> str:
    return str(2 * limit) if isinstance(limit, int) else f"{2 * limit:.12g}"
