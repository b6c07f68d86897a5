"""Finds names of participants that nobody in a config has: what such a name is for would never happen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from autogen_agentchat.base import ChatAgent, Team, TerminationCondition
from autogen_agentchat.conditions import HandoffTermination
from autogen_agentchat.teams import MagenticOneGroupChat, Swarm

from codeact_team.config.components import PlacedComponent
from codeact_team.config.document import Path, Problem
from codeact_team.suggestions import did_you_mean

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
