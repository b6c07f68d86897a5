"""The components in a document, and which kinds of them fit where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from autogen_agentchat.base import ChatAgent, Team, TerminationCondition
from autogen_agentchat.messages import StructuredMessageFactory
from autogen_core import CacheStore
from autogen_core.code_executor import CodeExecutor
from autogen_core.memory import Memory
from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import ChatCompletionClient
from autogen_core.tools import BaseTool, Workbench

from codeact_team.autogen_internals import ComponentClass
from codeact_team.config.document import Path, last_key
from codeact_team.providers import DEFAULT_NAMESPACES

# AutoGen's schemas only say "a component", and AutoGen only looks at its class once it has made one.
KINDS_BY_FIELD: Mapping[str, tuple[type, ...]] = {
    "agent": (ChatAgent,),
    "client": (ChatCompletionClient,),
    "code_executor": (CodeExecutor,),
    "conditions": (TerminationCondition,),
    "executor": (CodeExecutor,),
    "memory": (Memory,),
    "model_client": (ChatCompletionClient,),
    "model_context": (ChatCompletionContext,),
    "participants": (ChatAgent, Team),
    "store": (CacheStore,),
    "structured_message_factory": (StructuredMessageFactory,),
    "team": (Team,),
    "termination_condition": (TerminationCondition,),
    "tools": (BaseTool,),
    "workbench": (Workbench,),
    "wrapped_agent": (ChatAgent,),
}
"""The classes whose components a field takes, in AutoGen's components and ours."""


@dataclass(frozen=True)
class PlacedComponent:
    """A component of a document, with its config as its schema takes it."""

    path: Path
    component: ComponentClass
    config: dict[str, Any]


def is_component(value: Any) -> bool:
    """Whether this is a mapping that AutoGen would load as a component: one with a provider and a config."""
    match value:
        case {"provider": str(), "config": _}:
            return True
        case _:
            return False


def walk(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Everything in plain data, outer before inner."""
    yield path, value
    if isinstance(value, dict):
        for key, item in cast(dict[str, Any], value).items():
            yield from walk(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(cast(list[Any], value)):
            yield from walk(item, (*path, index))


def kinds_at(path: Path, parent: ComponentClass | None) -> tuple[type, ...]:
    """The classes that fit at ``path`` of a document, inside a component of class ``parent``; empty if not known."""
    # a field of somebody else's component may mean anything
    if parent is None or parent.__module__.partition(".")[0] not in DEFAULT_NAMESPACES:
        return ()
    return KINDS_BY_FIELD.get(last_key(path), ())
