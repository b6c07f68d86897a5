"""A team for the length of an ``async with``."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from autogen_agentchat.base import ChatAgent, Team
from autogen_core import ComponentBase
from autogen_core.models import ChatCompletionClient
from pydantic import BaseModel

from codeact_team.config.loading import load_config
from codeact_team.errors import ConfigError
from codeact_team.providers import Policy
from codeact_team.scope import Scope

_OURS = f"{__name__.partition('.')[0]}."


@asynccontextmanager
async def open_team(
    source: str | os.PathLike[str], *, overrides: Sequence[str] = (), policy: Policy | None = None
) -> AsyncGenerator[Team | ChatAgent]:
    """Load a team, or a single agent, and stop at the end whatever it started; its model clients are closed.

    What it needs starts in the background.

    Args:
        source: Path of a YAML or JSON file, or the name of a shipped config, such as ``quickstart``.
        overrides: Changes to single values, such as ``config.max_turns=3``.
        policy: What may be loaded; by default AutoGen's and our components, and what the environment adds.

    Raises:
        ConfigError: If anything is wrong with the config, or it is neither a team nor an agent.
        SandboxError: If the team needs what this machine does not have.
    """
    async with Scope() as scope:
        yield load_into(scope, source, overrides=overrides, policy=policy)


def load_into(
    scope: Scope, source: str | os.PathLike[str], *, overrides: Sequence[str], policy: Policy | None
) -> Team | ChatAgent:
    """Load a team, or a single agent, that ``scope``, the current one, is to own, and start what it needs.

    Raises:
        ConfigError: As :func:`open_team`.
    """
    team = load_config(source, overrides=overrides, policy=policy)
    for client in _model_clients(team):
        scope.at_end(client.close)
    if not isinstance(team, Team | ChatAgent):
        raise ConfigError(
            f"a {type(team).__name__} cannot run a task; name a team or an agent", file=str(source)
        )
    scope.prewarm()
    return team


def _model_clients(root: ComponentBase[BaseModel]) -> list[ChatCompletionClient]:
    """The model clients of a component and of all its parts, which AutoGen keeps in private attributes."""
    found: list[ChatCompletionClient] = []
    seen: set[int] = set()
    queue: list[object] = [root]
    while queue:
        part = queue.pop()
        if id(part) in seen:
            continue
        seen.add(id(part))
        match part:
            case ChatCompletionClient():
                found.append(part)
            case ComponentBase():
                queue += vars(part).values()
            case list() | tuple():
                queue += part  # pyright: ignore[reportUnknownArgumentType]
            case _:
                # what our own components are made of
                if type(part).__module__.startswith(_OURS):
                    queue += getattr(part, "__dict__", {}).values()
    return found
