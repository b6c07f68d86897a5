"""A task's stream of messages, whose agents are stopped in order when nobody wants it any more."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from autogen_agentchat.base import ChatAgent, TaskResult, Team
from autogen_core import CancellationToken

from codeact_team.aio import to_the_end
from codeact_team.runs.telling import Telling

STOP_GRACE = 5.0
"""Seconds that agents get to end their work when a run is stopped, before they are abandoned."""


async def stream(runner: Team | ChatAgent, task: str, telling: Telling) -> str | None:
    """Run the task; return why the team stopped."""
    token = CancellationToken()
    work = asyncio.ensure_future(_consume(runner, task, telling, token))
    try:
        return await asyncio.shield(work)
    except BaseException:
        await to_the_end(_end(work, token))
        raise


async def _consume(
    runner: Team | ChatAgent, task: str, telling: Telling, token: CancellationToken
) -> str | None:
    messages, stop_reason = runner.run_stream(task=task, cancellation_token=token), None
    try:
        async for item in messages:
            if isinstance(item, TaskResult):
                stop_reason = item.stop_reason
            else:
                telling.message(item)
    except BaseException:
        # first the token: a stream that is closed waits for its agents
        token.cancel()
        with suppress(asyncio.CancelledError):
            await messages.aclose()
        raise
    return stop_reason


async def _end(work: asyncio.Future[Any], token: CancellationToken) -> None:
    # a cancelled stream waits for its agents, and only the token reaches these
    token.cancel()
    await asyncio.wait({work}, timeout=STOP_GRACE)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
