"""Opens a team for the length of an ``async with``."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from autogen_agentchat.base import ChatAgent, Team

from codeact_team.config.document import ConfigSource, is_text
from codeact_team.config.dumping import credentials_of
from codeact_team.config.for_every import ForEvery
from codeact_team.config.loading import CheckedConfig, read_config
from codeact_team.core.events import Opened
from codeact_team.core.executor_interface import StreamingCodeExecutor
from codeact_team.core.providers import Policy
from codeact_team.core.redaction import secret_remover
from codeact_team.core.scope import Scope
from codeact_team.errors import ConfigError
from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.executors.pool import SandboxPool
from codeact_team.executors.stock import why_not_ahead
from codeact_team.sandbox.leftovers import remove_leftovers
from codeact_team.telemetry.spans import traced

logger = logging.getLogger(__name__)


@asynccontextmanager
async def open_team(
    source: ConfigSource, *, overrides: Sequence[str | ForEvery] = (), policy: Policy | None = None
) -> AsyncGenerator[Team | ChatAgent]:
    """Load a team, or a single agent, and stop at the end whatever it started; its model clients are closed.

    The answer to a task is the last message of a run, where the work was accepted:
    ``(await team.run(task=…)).messages[-1].to_text()``.

    What its sandboxes need is there, such as packages; the sandboxes themselves start in the background.

    Where the process has a global tracer provider of OpenTelemetry, what the team does becomes spans.

    Its arguments are those of :func:`load_config`. :func:`codeact_team.open_team` does the same, and can keep what happens.

    Raises:
        ConfigError: If anything is wrong with the config, or it is neither a team nor an agent.
        SandboxError: If the team needs what this machine does not have.
    """
    config = read_config(source, overrides=overrides, policy=policy)
    with traced(*span_settings(config, source)):
        async with Scope() as scope:
            team = make_runnable(config)
            await make_ready(scope)
            yield team


def span_settings(
    config: CheckedConfig, source: ConfigSource | CheckedConfig
) -> tuple[Callable[[str], str], str]:
    """What spans need of a config: what takes its credentials out of a text, and its name, which may be ""."""
    name = Path(source).stem if isinstance(source, str | os.PathLike) and not is_text(source) else ""
    return secret_remover(credentials_of(config.document, os.environ)), name


def make_runnable(config: CheckedConfig) -> Team | ChatAgent:
    """Make a team, or a single agent.

    Raises:
        ConfigError: As :func:`open_team`.
    """
    team = config.make()
    if not isinstance(team, Team | ChatAgent):
        raise ConfigError(
            f"a {type(team).__name__} cannot run a task; name a team or an agent", file=config.document.name
        )
    return team


async def make_ready(scope: Scope, *, with_tools: bool = True) -> None:
    """Get what the executors of a scope have to have before a model is paid, and begin to start what it owns.

    What runs that were killed have left on this machine is removed meanwhile.

    Args:
        scope: What owns it.
        with_tools: Whether that includes what tools need.

    Raises:
        SandboxError: If it cannot be had.
    """
    scope.begin(remove_leftovers())
    for executor in executors_of(scope):
        await executor.prepare()
    scope.prewarm(None if with_tools else executors_of(scope))


@asynccontextmanager
async def open_pool(
    source: ConfigSource,
    *,
    overrides: Sequence[str | ForEvery] = (),
    policy: Policy | None = None,
    size: int = 2,
    max_age: float = 3600.0,
    max_idle: float = 600.0,
    shared: bool = False,
) -> AsyncGenerator[SandboxPool]:
    """A pool that keeps ready what the code of a team runs in, or of a single agent.

    Teams of this config that are opened within it, or within its ``used()``, get their sandboxes there.

    Args:
        source: As of :func:`load_config`, and so are ``overrides`` and ``policy``.
        overrides: Changes to the config.
        policy: What may be loaded.
        size: As of :class:`SandboxPool`, and so is the rest.
        max_age: Seconds that a sandbox waits.
        max_idle: Seconds until nothing is kept ready that nobody has asked for.
        shared: Whether a sandbox may be used again.

    Raises:
        ConfigError: If anything is wrong with the config, or it is neither a team nor an agent.
        SettingError: If a number is out of range.
    """
    examples = await example_executors(read_config(source, overrides=overrides, policy=policy))
    async with SandboxPool(*examples, size=size, max_age=max_age, max_idle=max_idle, shared=shared) as pool:
        yield pool


async def example_executors(config: CheckedConfig) -> list[SandboxedCodeExecutor]:
    """Executors as a team will have them, not started, but for those whose sandboxes cannot be started ahead.

    Raises:
        ConfigError: As :func:`open_team`.
    """
    async with Scope() as scope:
        make_runnable(config)
        found = [part for part in scope.owned if isinstance(part, SandboxedCodeExecutor)]
    for reason in filter(None, map(why_not_ahead, found)):
        logger.info("%s", reason)
    return [executor for executor in found if why_not_ahead(executor) is None]


def executors_of(scope: Scope) -> list[StreamingCodeExecutor]:
    """The executors that a scope owns."""
    return [part for part in scope.owned if isinstance(part, StreamingCodeExecutor)]


def what_is_open(executors: Sequence[StreamingCodeExecutor]) -> Opened:
    """What there is to tell of executors when their team is loaded."""
    places = [executor.workspace for executor in executors]
    lasting = [str(place.path) for place in places if place is not None and place.lasts]
    return Opened(
        loosenings=[said for executor in executors for said in executor.loosenings],
        workspaces=list(dict.fromkeys(lasting)),
    )
