"""Makes the components of a checked document, or tries whether they can be made, without any effect."""

from __future__ import annotations

import copy
import os
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import Context
from typing import Any

from autogen_agentchat.agents import UserProxyAgent
from autogen_agentchat.base import ChatAgent, Team
from autogen_core import Component, ComponentBase, ComponentLoader
from autogen_core.code_executor import CodeExecutor
from autogen_core.memory import Memory
from autogen_core.models import ChatCompletionClient
from autogen_core.tools import BaseTool, Workbench
from pydantic import BaseModel

from codeact_team.agents.ledger import BudgetTermination
from codeact_team.config.components import PlacedComponent
from codeact_team.config.document import Document, at, dotted, is_in
from codeact_team.config.models import EVERYTHING, listed_info
from codeact_team.config.yaml12 import Path
from codeact_team.core import places, scope
from codeact_team.core.autogen_internals import ComponentClass, repaired
from codeact_team.core.effects import Door, current_door, remembered
from codeact_team.core.executor_interface import StreamingCodeExecutor
from codeact_team.core.providers import NAMESPACES_VARIABLE, Policy, unsafe_reason, using
from codeact_team.models.clients import wrap_client
from codeact_team.tools.autogen_parts import wrap

Failure = tuple[PlacedComponent, Exception]
"""A component that cannot be made although all that is in it can, and why."""

_Models = Mapping[Path, dict[str, Any]]
"""What AutoGen is to load, by the place of each component."""

_HARMLESS = (
    "autogen_agentchat.",
    "autogen_core.",
    "autogen_ext.tools.code_execution.",
    "autogen_ext.tools.mcp.",
    "codeact_team.",
)
"""Modules whose components do nothing when they are made, but those that are not safe."""

_MADE = f"{__name__}.Made"
_REPLAY = "autogen_ext.models.replay.ReplayChatCompletionClient"

_WRAPPED_KINDS: Any = (ChatCompletionClient, (BaseTool, Workbench, CodeExecutor), Memory, UserProxyAgent)
"""Each passes the door by itself, also inside of another kind."""


class MadeConfig(BaseModel):
    """Holds the part itself."""

    part: Any


class Made(ComponentBase[BaseModel], Component[MadeConfig]):
    """Stands for a part that is made already in the config of what it is a part of. It is in no dump."""

    component_type = "made"
    component_config_schema = MadeConfig
    component_provider_override = _MADE

    @classmethod
    def _from_config(cls, config: MadeConfig) -> Any:
        return config.part

    def _to_config(self) -> MadeConfig:
        raise NotImplementedError


def make(document: Document, parts: Sequence[PlacedComponent], policy: Policy) -> tuple[Any, list[Failure]]:
    """Make what a document describes. Returns that, if nothing has failed, and what has failed."""
    wrapped = {part.path for part in _to_be_wrapped(parts)}
    with _door_for_budgets(parts):
        return _make(parts, _models(document, parts), policy, wrapped=wrapped)


def _door_for_budgets(parts: Sequence[PlacedComponent]) -> AbstractContextManager[object]:
    """Within it, parts get a door to remember where one of them counts what passes it, and whoever loads them has none."""
    counts = any(issubclass(part.component, BudgetTermination) for part in parts)
    return remembered(Door()) if counts and current_door() is None else nullcontext()


def failures_in_trial(document: Document, parts: Sequence[PlacedComponent], policy: Policy) -> list[Failure]:
    """Find the components that could not be made, without any effect.

    Model clients, which want keys, and agents and executors that may do something when they are made, have a stand-in.
    What holds anything else that may do something is not tried.
    """
    models = _models(document, parts)
    tried: list[PlacedComponent] = []
    untried: list[Path] = []
    replaced: list[Path] = []
    for part in parts:
        if any(is_in(part.path, outer) for outer in replaced):
            continue
        if (stand_in := _stand_in(part)) is not None:
            models[part.path].update(stand_in)
            replaced.append(part.path)
        elif _is_harmless(part.component):
            tried.append(part)
        else:
            untried.append(part.path)
    # in a context of its own, since executors register with the scope that is open
    return Context().run(_make, tried, models, policy, without=untried)[1]


def _make(
    parts: Sequence[PlacedComponent],
    models: _Models,
    policy: Policy,
    *,
    wrapped: Collection[Path] = (),
    without: Sequence[Path] = (),
) -> tuple[Any, list[Failure]]:
    """Make each of ``parts`` once, inner before outer, but those that hold something that is missing."""
    made: Any = None
    failures: list[Failure] = []
    missing = list(without)
    with _in_force(policy):
        for part in sorted(parts, key=lambda part: -len(part.path)):
            if any(is_in(path, part.path) for path in missing):
                continue
            try:
                made = repaired(ComponentLoader.load_component(models[part.path]))
            except Exception as error:  # whatever a component raises
                missing.append(part.path)
                failures.append((part, error))
                continue
            places.put(made, dotted(part.path))
            if part.path in wrapped:
                made = _wrapped(made, [inner for inner in parts if is_in(inner.path, part.path)])
            models[part.path].update(_loading(_MADE, part=made))
    return made, failures


def _wrapped(made: Any, parts: Sequence[PlacedComponent]) -> Any:
    """A part, wrapped; ``parts`` are what describes it and what is in it."""
    if not isinstance(made, ChatCompletionClient):
        return wrap(made)
    scope.at_end(made.close)
    # a cache has the name in its client
    models = (part.config.get("model") for part in sorted(parts, key=lambda part: len(part.path)))
    return wrap_client(made, next((model for model in models if isinstance(model, str)), None))


def _to_be_wrapped(parts: Sequence[PlacedComponent]) -> Iterator[PlacedComponent]:
    """What has to pass the door by a wrapper: of parts of one kind that hold each other, the outermost.

    The root is none of them: whoever loads a client, a tool or an agent alone is given just that.
    """
    agents = [part for part in parts if issubclass(part.component, ChatAgent | Team)]
    for kinds in _WRAPPED_KINDS:
        wrapped: list[Path] = []
        for part in parts:
            if not (part.path and issubclass(part.component, kinds)):
                continue
            if any(is_in(part.path, outer) for outer in wrapped):
                continue
            if issubclass(part.component, Memory | ChatCompletionClient) or _is_foreign(part, agents):
                wrapped.append(part.path)
                yield part


def _is_foreign(part: PlacedComponent, agents: Sequence[PlacedComponent]) -> bool:
    """Whether an agent of AutoGen's uses a part, which is no agent itself in the form of a tool."""
    if part not in agents and any(is_in(agent.path, part.path) for agent in agents):
        return False
    users = [agent.component for agent in agents if is_in(part.path, agent.path)]
    return not (users and users[-1].__module__.startswith("codeact_team."))


def _stand_in(part: PlacedComponent) -> dict[str, Any] | None:
    kind, config = part.component, part.config
    if issubclass(kind, ChatCompletionClient):
        info = config.get("model_info") or listed_info(kind, config) or EVERYTHING
        return _loading(_REPLAY, chat_completions=(), model_info=info)
    if _is_harmless(kind):
        return None
    if issubclass(kind, CodeExecutor) and not issubclass(kind, StreamingCodeExecutor):
        return _loading("codeact_team.DockerCommandLineCodeExecutor")
    if issubclass(kind, ChatAgent) and isinstance(config.get("name"), str):
        return _loading("autogen_agentchat.agents.UserProxyAgent", name=config["name"])
    return None


def _loading(provider: str, **config: object) -> dict[str, Any]:
    return {"provider": provider, "component_version": None, "config": config}


def _is_harmless(component: ComponentClass) -> bool:
    return component.__module__.startswith(_HARMLESS) and unsafe_reason(component) is None


def _models(document: Document, parts: Sequence[PlacedComponent]) -> _Models:
    data = copy.deepcopy(document.data)
    return {part.path: _model(data, part) for part in parts}


def _model(data: dict[str, Any], part: PlacedComponent) -> dict[str, Any]:
    """What AutoGen is to load for ``part``: what the document says, and what AutoGen would not find out itself."""
    model = at(data, part.path)
    model["config"] = copy.deepcopy(part.config)
    # a team takes what does not say that it is a team for an agent
    model["component_type"] = part.component.component_type
    return model


@contextmanager
def _in_force(policy: Policy) -> Generator[None]:
    """Let ``policy`` decide what is loaded, also for AutoGen, which after 0.7.5 has an allow-list of its own."""
    before = os.environ.get(NAMESPACES_VARIABLE)
    os.environ[NAMESPACES_VARIABLE] = ",".join(sorted(policy.namespaces))
    try:
        with using(policy):
            yield
    finally:
        if before is None:
            del os.environ[NAMESPACES_VARIABLE]
        else:
            os.environ[NAMESPACES_VARIABLE] = before
