"""Components in a document: which class fits where, and which participants are named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from autogen_agentchat.base import ChatAgent, Team, TerminationCondition
from autogen_agentchat.conditions import HandoffTermination
from autogen_agentchat.teams import MagenticOneGroupChat, Swarm

from codeact_team.config.document import Problem, last_key, walk
from codeact_team.config.yaml12 import Path
from codeact_team.core.autogen_internals import ComponentClass
from codeact_team.core.providers import DEFAULT_NAMESPACES, KINDS_BY_FIELD, did_you_mean

DIRECTORY_FIELDS = ("work_dir", "bind_dir")
"""The fields in which AutoGen's and our code executors name a directory of this machine that code works in."""


@dataclass(frozen=True)
class PlacedComponent:
    """A component of a document: its place, class, and settings with what its schema needs beyond the document."""

    path: Path
    component: ComponentClass
    config: dict[str, Any]


def providers_in(data: Any) -> Iterator[str]:
    """The providers of the components in plain data, as they are written."""
    return (str(value["provider"]) for _, value in walk(data) if is_component(value))


def is_component(value: Any) -> bool:
    """Whether AutoGen would load a value as a component: a mapping with a provider and a config."""
    match value:
        case {"provider": str(), "config": _}:
            return True
        case _:
            return False


def described_components(data: Any) -> Iterator[tuple[Path, Any]]:
    """The components that plain data describes, each with its path, outer before inner. Nothing is imported."""
    return ((path, value) for path, value in walk(data) if is_component(value))


def kinds_at(path: Path, parent: ComponentClass | None) -> tuple[type, ...]:
    """The classes that fit at ``path`` of a document, inside a component of class ``parent``; empty if not known."""
    # a field of another package's component may mean anything
    if parent is None or parent.__module__.partition(".")[0] not in DEFAULT_NAMESPACES:
        return ()
    return KINDS_BY_FIELD.get(last_key(path), ())


_USER = "user"
"""The source of the task's message."""
_ORCHESTRATOR = "MagenticOneOrchestrator"
"""The source of the messages of AutoGen's class."""


def unknown_participants(parts: Sequence[PlacedComponent]) -> Iterator[Problem]:
    """Find each reference to a participant that does not exist; only in a team, as others may be in any team."""
    # a config that is no mapping is reported by its schema
    parts = [part for part in parts if type(part.config) is dict]
    if not parts or not issubclass(parts[0].component, Team):
        return
    names = _participants(parts)
    if names is None:
        return
    in_swarm = any(issubclass(part.component, Swarm) for part in parts)
    for part in parts:
        if issubclass(part.component, ChatAgent | TerminationCondition):
            # handoffs only work in a Swarm
            for field in ("source", "sources", "filter", *(["handoffs"] if in_swarm else [])):
                for place, name in _names_in(part.config.get(field), (field,)):
                    if name not in names:
                        hint = did_you_mean(name, names) or f"; there are {', '.join(sorted(names))}"
                        yield Problem(
                            (*part.path, "config", *place), f"no agent of the team is called {name!r}{hint}"
                        )


def _participants(parts: Sequence[PlacedComponent]) -> set[str] | None:
    """All names that messages may come from; ``None`` if one of them is not known."""
    names = {_USER}
    for part in parts:
        if issubclass(part.component, MagenticOneGroupChat):
            names.add(_ORCHESTRATOR)
        elif issubclass(part.component, HandoffTermination):
            # its target may be outside the team
            names |= {name for _, name in _names_in(part.config.get("target"), ())}
        elif issubclass(part.component, ChatAgent):
            name = part.config.get("name")
            # some classes choose a name themselves; a missing one is reported by the schema
            if not isinstance(name, str):
                return None
            names.add(name)
    return names


def _names_in(value: object, path: Path) -> Iterator[tuple[Path, str]]:
    """The names in a text, a list, a handoff or a filter. Any other value is for the schema to refuse."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, list):
        for index, item in enumerate(cast("list[object]", value)):
            yield from _names_in(item, (*path, index))
    elif isinstance(value, dict):
        for key in ("target", "per_source", "source"):
            yield from _names_in(cast("dict[str, object]", value).get(key), (*path, key))
