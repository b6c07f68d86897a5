"""A team for the length of an ``async with``."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from autogen_agentchat.base import ChatAgent, Team

from codeact_team.config.loading import load_config
from codeact_team.errors import ConfigError
from codeact_team.providers import Policy
from codeact_team.scope import Scope


@asynccontextmanager
async def open_team(
    source: str | os.PathLike[str], *, overrides: Sequence[str] = (), policy: Policy | None = None
) -> AsyncGenerator[Team | ChatAgent]:
    """Load a team, or a single agent, and stop at the end whatever it started.

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
        team = load_config(source, overrides=overrides, policy=policy)
        if not isinstance(team, Team | ChatAgent):
            raise ConfigError(
                f"a {type(team).__name__} cannot run a task; name a team or an agent", file=str(source)
            )
        scope.prewarm()
        yield team
