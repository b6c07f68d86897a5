"""Components in a document: what they are, who takes part, and what they were loaded from.

Components keep values, not where these came from. So each component of a loaded document is known, as long as it
lives, with the references of that document; nothing else is remembered.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from autogen_agentchat.base import ChatAgent, Team, TerminationCondition
from autogen_agentchat.conditions import HandoffTermination
from autogen_agentchat.messages import StructuredMessageFactory
from autogen_agentchat.teams import MagenticOneGroupChat, Swarm
from autogen_core import CacheStore, ComponentBase
from autogen_core.code_executor import CodeExecutor
from autogen_core.memory import Memory
from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import ChatCompletionClient
from autogen_core.tools import BaseTool, Workbench
from pydantic import BaseModel

from codeact_team.config.document import Problem, Resolved, last_key
from codeact_team.config.yaml12 import Path
from codeact_team.core.autogen_internals import ComponentClass, components_in
from codeact_team.core.providers import DEFAULT_NAMESPACES, did_you_mean

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


_USER = "user"
"""Whose message the task is."""
_ORCHESTRATOR = "MagenticOneOrchestrator"
"""The name under which AutoGen's class speaks."""


def unknown_participants(parts: Sequence[PlacedComponent]) -> Iterator[Problem]:
    """Find each name that is given for a participant of a team and that nobody has.

    Where the outermost component is no team, the others are not known: an agent alone may be meant for any team.
    """
    # a config that is no mapping is told elsewhere
    parts = [part for part in parts if type(part.config) is dict]
    if not parts or not issubclass(parts[0].component, Team):
        return
    names = _names(parts)
    if names is None:
        return
    in_swarm = any(issubclass(part.component, Swarm) for part in parts)
    for part in parts:
        if issubclass(part.component, ChatAgent | TerminationCondition):
            for place, name in _named(part.config, handoffs=in_swarm):
                if name not in names:
                    hint = did_you_mean(name, names) or f"; there are {', '.join(sorted(names))}"
                    yield Problem((*part.path, "config", *place), f"nobody here is called {name!r}{hint}")


def _names(parts: Sequence[PlacedComponent]) -> set[str] | None:
    """Who can be named; ``None`` where somebody's name cannot be known."""
    names = {_USER}
    for part in parts:
        if issubclass(part.component, MagenticOneGroupChat):
            names.add(_ORCHESTRATOR)
        elif issubclass(part.component, HandoffTermination):
            # whoever is to go on outside of the team
            names |= {name for _, name in _names_in(part.config.get("target"), ())}
        elif issubclass(part.component, ChatAgent):
            name = part.config.get("name")
            # some give themselves a name; and that one is missing is told elsewhere
            if not isinstance(name, str):
                return None
            names.add(name)
    return names


def _named(config: Mapping[str, Any], *, handoffs: bool) -> Iterator[tuple[Path, str]]:
    """The names in the config of an agent or a termination, with their places; ``handoffs`` count in a ``Swarm`` only."""
    for field in ("source", "sources", "filter", *(["handoffs"] if handoffs else [])):
        yield from _names_in(config.get(field), (field,))


def _names_in(value: object, path: Path) -> Iterator[tuple[Path, str]]:
    """A name, those in a list, or those in a handoff or a filter. What is none of these is told by the schema."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[object]", value)):
            yield from _names_in(item, (*path, index))
    elif isinstance(value, dict):
        for key in ("target", "per_source", "source"):
            yield from _names_in(cast("dict[str, object]", value).get(key), (*path, key))


_LONG = 8

_References = Mapping[Path, Resolved]

_loaded: dict[int, _References] = {}
"""By the id of a component; it goes with the component."""


def remember(root: ComponentBase[BaseModel], references: _References) -> None:
    """Let ``root``, and each component in it, be dumped with these references."""
    if references:
        for part in components_in(root):
            # what all have in common, as AutoGen's defaults, is there again
            if id(part) not in _loaded:
                weakref.finalize(part, _loaded.pop, id(part))
            _loaded[id(part)] = references


class Origins:
    """The references that the text in a component, and in all that it holds, may have come from."""

    def __init__(self, root: ComponentBase[BaseModel]) -> None:
        self._by_place: dict[tuple[Path, str], str] = {}
        self._by_key: dict[tuple[str, str], str] = {}
        self._by_value: dict[str, str] = {}
        documents = {id(found): found for part in components_in(root) if (found := _loaded.get(id(part)))}
        for references in documents.values():
            for path, resolved in references.items():
                self._add(path, resolved)

    def _add(self, path: Path, resolved: Resolved) -> None:
        text, written = resolved.text, resolved.written or ""
        self._by_place.setdefault((path, text), written)
        self._by_key.setdefault((last_key(path), text), written)
        if resolved.values and len(text) >= _LONG:
            self._by_value.setdefault(text, written)

    def find(self, path: Path, text: str) -> str | None:
        """The text with ``${...}`` that ``text`` at ``path`` of a dump came from, if it did.

        A value under the key that it was loaded under is the loaded one for all purposes: writing the reference changes
        nothing. A long value of a variable counts under any other key, too, since it may be a secret that a component
        stores elsewhere. A short one, or a default, which the config itself shows, does not: unrelated text such as "1"
        would become a reference.
        """
        return (
            self._by_place.get((path, text))
            or self._by_key.get((last_key(path), text))
            or self._by_value.get(text)
        )
