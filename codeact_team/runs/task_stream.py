"""A task's stream of messages, whose agents are stopped in order when nobody wants it any more."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from autogen_agentchat.base import ChatAgent, TaskResult, Team
from autogen_agentchat.messages import BaseChatMessage
from autogen_core import CancellationToken

from codeact_team.aio import to_the_end
from codeact_team.autogen_internals import time_limit
from codeact_team.effects import Door
from codeact_team.events import MessageSent

STOP_GRACE = 5.0
"""Seconds that agents get to end their work when a run is stopped, before they are abandoned."""


class TimeLimitReached(Exception):
    """A time limit has stopped a run; the text says which."""


async def stream(
    runner: Team | ChatAgent, task: str | BaseChatMessage, door: Door, *, seconds: float | None
) -> str | None:
    """Run the task, tell each message at the door, and return why the team stopped.

    Raises:
        TimeLimitReached: If it took longer than ``seconds``, or than a time limit of the team's own; its agents have been
            stopped.
    """
    seconds = min((limit for limit in (seconds, time_limit(runner)) if limit is not None), default=None)
    token = CancellationToken()
    work = asyncio.ensure_future(_consume(runner, task, door, token))
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await asyncio.shield(work)
    except BaseException as error:
        await to_the_end(_end(work, token))
        if limit.expired() and isinstance(error, TimeoutError):
            raise TimeLimitReached(f"the time limit of {seconds:g} seconds is reached") from None
        raise


async def _consume(
    runner: Team | ChatAgent, task: str | BaseChatMessage, door: Door, token: CancellationToken
) -> str | None:
    messages, stop_reason = runner.run_stream(task=task, cancellation_token=token), None
    try:
        async for item in messages:
            if isinstance(item, TaskResult):
                stop_reason = item.stop_reason
            else:
                door.tell(MessageSent(message=item))
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
