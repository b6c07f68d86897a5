"""A team, or a single agent, that is open and takes one task after the other."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import asynccontextmanager
from signal import Signals
from typing import Any

from autogen_agentchat.base import ChatAgent, Team
from autogen_core import CancellationToken

from codeact_team.config.open import load_into
from codeact_team.providers import Policy
from codeact_team.runs.events import EventSink, RunResult
from codeact_team.runs.renewal import renew
from codeact_team.runs.streaming import stream
from codeact_team.runs.telling import End, Telling
from codeact_team.scope import Scope


class OpenTeam:
    """Takes one task after the other, each a run of its own, and remembers what was before.

    Args:
        runner: The team, or the agent.
        scope: Owns what it needs.
        sink: Is told what happens in each run.
    """

    def __init__(self, runner: Team | ChatAgent, scope: Scope, sink: EventSink) -> None:
        self._runner = runner
        self._scope = scope
        self._sink = sink
        self._work: asyncio.Future[str | None] | None = None
        self._stopped: list[Signals] = []

    async def started(self) -> None:
        """Wait until everything that the team needs has started.

        Raises:
            SandboxError: If something cannot start.
        """
        for part in self._scope.owned:
            await part.start()

    async def run(self, task: str) -> RunResult:
        """Run the team on a task. Whatever goes wrong with it is told by the result, and another task can follow."""
        telling = Telling(self._sink)
        end = await self._end_of(stream(self._runner, task, telling), telling)
        return telling.ended(end)

    async def reset(self) -> End:
        """Forget the conversation, and what the code has left in its interpreter."""
        return await self._end_of(_reset(self._runner), Telling(self._sink))

    def stop(self, number: Signals) -> bool:
        """Stop the run, or the reset, that is under way, and nothing else; whether there is one."""
        if self._work is None:
            return False
        if not self._stopped:
            self._work.cancel()
        self._stopped.append(number)
        return True

    async def _end_of(self, work: Coroutine[Any, Any, str | None], telling: Telling) -> End:
        self._work, self._stopped = asyncio.ensure_future(work), []
        try:
            end = await telling.end_of(self._work, self._stopped)
        finally:
            self._work = None
        if not end.came_by_itself:
            await renew(self._runner)
        return end


@asynccontextmanager
async def opened_team(
    source: str | os.PathLike[str],
    sink: EventSink,
    *,
    overrides: Sequence[str] = (),
    policy: Policy | None = None,
) -> AsyncGenerator[OpenTeam]:
    """Open a team, or a single agent; at the end everything that it has started is stopped.

    What it needs starts in the background.

    Args:
        source: Path of a YAML or JSON file, or the name of a shipped config, such as ``quickstart``.
        sink: Is told what happens.
        overrides: Changes to single values, such as ``config.max_turns=3``.
        policy: What may be loaded; by default AutoGen's and our components, and what the environment adds.

    Raises:
        ConfigError: If anything is wrong with the config, or it is neither a team nor an agent.
        SandboxError: If the team needs what this machine does not have.
    """
    async with Scope() as scope:
        runner = load_into(scope, source, overrides=overrides, policy=policy)
        Telling(sink).opened(scope)
        yield OpenTeam(runner, scope, sink)


async def _reset(runner: Team | ChatAgent) -> None:
    if isinstance(runner, Team):
        await runner.reset()
    else:
        await runner.on_reset(CancellationToken())
