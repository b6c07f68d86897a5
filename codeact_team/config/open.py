"""Makes the parts of a team ready, and opens a pool of its sandboxes."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from autogen_agentchat.base import ChatAgent, Team
from autogen_core.code_executor import CodeExecutor
from autogen_core.models import ChatCompletionClient

from codeact_team.config.document import ConfigSource, dotted, is_text
from codeact_team.config.loading import CheckedConfig, read_config
from codeact_team.config.overrides import ForEvery, apply_for_every, apply_overrides
from codeact_team.core.autogen_internals import components_in
from codeact_team.core.events import Opened
from codeact_team.core.executor_interface import StreamingCodeExecutor
from codeact_team.core.places import place_of
from codeact_team.core.providers import Policy, schema_of
from codeact_team.core.scope import Scope
from codeact_team.errors import ConfigError
from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.executors.pool import SandboxPool
from codeact_team.executors.warm_sandboxes import why_not_warm
from codeact_team.models.clients import WrappedClient
from codeact_team.sandbox.leftovers import remove_leftovers
from codeact_team.text.redaction import secret_remover

logger = logging.getLogger(__name__)


def span_settings(
    config: CheckedConfig, source: ConfigSource | CheckedConfig
) -> tuple[Callable[[str], str], str]:
    """The arguments of :func:`traced` for a config: a function that removes its credentials from a text, and its name, or ""."""
    name = Path(source).stem if isinstance(source, str | os.PathLike) and not is_text(source) else ""
    return secret_remover(config.credentials), name


def make_runnable(config: CheckedConfig) -> Team | ChatAgent:
    """Make a team, or a single agent.

    Raises:
        ConfigError: If it is neither.
    """
    team = config.make()
    if not isinstance(team, Team | ChatAgent):
        raise ConfigError(
            f"a {type(team).__name__} cannot run a task; name a team or an agent", file=config.document.name
        )
    return team


async def make_ready(scope: Scope, *, with_tools: bool = True) -> None:
    """Prepare the executors of a scope before a model costs anything, and start its parts in the background.

    Removes the leftovers of killed runs on this machine meanwhile.

    Args:
        scope: The owner of the executors.
        with_tools: Whether tools are started, too.

    Raises:
        SandboxError: If an executor lacks something.
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
    """A pool of warm sandboxes for the code of a team, or of a single agent, for the length of an ``async with``.

    Teams of this config that are opened within it, or within its ``used()``, take their sandboxes from it.

    Args:
        source: As for :func:`load_config`.
        overrides: Changes to the config, as for :func:`load_config`.
        policy: What may be loaded.
        size: Number of warm sandboxes, as for :class:`SandboxPool`.
        max_age: Seconds after which a warm sandbox is replaced.
        max_idle: Seconds without demand after which none are kept warm.
        shared: Whether a sandbox may be used again.

    Raises:
        ConfigError: If anything is wrong with the config, or it is neither a team nor an agent.
        SettingError: If a number is out of range.
    """
    examples = await _example_executors(read_config(source, overrides=overrides, policy=policy))
    async with SandboxPool(*examples, size=size, max_age=max_age, max_idle=max_idle, shared=shared) as pool:
        yield pool


async def _example_executors(config: CheckedConfig) -> list[SandboxedCodeExecutor]:
    """The executors of a team, not started, without those whose sandboxes cannot be started ahead.

    Raises:
        ConfigError: If it is neither a team nor an agent.
    """
    async with Scope() as scope:
        make_runnable(config)
        found = [part for part in scope.owned if isinstance(part, SandboxedCodeExecutor)]
    for reason in filter(None, map(why_not_warm, found)):
        logger.info("%s", reason)
    return [executor for executor in found if why_not_warm(executor) is None]


def ask_model(team: Team | ChatAgent, config: CheckedConfig, name: str) -> Sequence[ChatCompletionClient]:
    """Have all model clients of a team ask another model from the next call on. Blocks.

    Args:
        team: The team, or the agent.
        config: What it was made of.
        name: The name of the model.

    Returns:
        The new clients, which the caller closes.

    Raises:
        ConfigError: If one of them cannot ask it; then nothing has changed.
    """
    # it counts more than what else has set the model
    document = replace(config.document, overrides={})
    change = ForEvery(ChatCompletionClient, "model", name, "/model")
    changed = CheckedConfig.of(apply_for_every(document, [change], config.policy), config.policy)
    wrappers = {place_of(part.wrapped): part for part in clients_of(team)}
    places = {part.path: dotted(part.path) for part in changed.parts if dotted(part.path) in wrappers}
    made = changed.make_again(places)
    for path, client in made.items():
        wrappers[places[path]].put(client, name)
    return [*made.values()]


def clients_of(team: Team | ChatAgent) -> Sequence[WrappedClient]:
    """The model clients of a loaded team, or of an agent."""
    # they pass for what they wrap
    return [part for part in components_in(team) if type(part) is WrappedClient]


def with_items(
    config: CheckedConfig, setting: str, items: Sequence[str], *, is_first: bool = False
) -> tuple[CheckedConfig, Sequence[str]]:
    """A config whose executors have these items in a list, too, and the overrides of ``config`` that make it so.

    Args:
        config: The config.
        setting: The field of an executor's config, such as ``packages``.
        items: The items; a text that stands in place of a list replaces it.
        is_first: Whether they stand before those that are there.

    Raises:
        ConfigError: If no executor takes such items, or not these.
    """
    settings: dict[str, Any] = {}
    for part in config.parts:
        if issubclass(part.component, CodeExecutor) and setting in schema_of(part.component).model_fields:
            path, value = dotted((*part.path, "config", setting)), part.config.get(setting)
            there = cast("list[Any]", value) if isinstance(value, list) else []
            before, behind = (items, there) if is_first else (there, items)
            joined = [*before, *(item for item in behind if item not in before)]
            settings[path] = items if isinstance(items, str) else joined
    if not settings:
        raise ConfigError(
            f"the team runs no code that {setting} could be added for", file=config.document.name
        )
    changes = [f"{path}={json.dumps(value)}" for path, value in settings.items()]
    return CheckedConfig.of(apply_overrides(config.document, changes), config.policy), changes


def executors_of(scope: Scope) -> list[StreamingCodeExecutor]:
    """The executors that a scope owns."""
    return [part for part in scope.owned if isinstance(part, StreamingCodeExecutor)]


def what_is_open(executors: Sequence[StreamingCodeExecutor]) -> Opened:
    """The event about the executors of a team that is loaded."""
    workspaces = [executor.workspace for executor in executors]
    lasting = [str(workspace.path) for workspace in workspaces if not workspace.is_own]
    return Opened(
        relaxations=[said for executor in executors for said in executor.relaxations],
        workspaces=list(dict.fromkeys(lasting)),
    )
