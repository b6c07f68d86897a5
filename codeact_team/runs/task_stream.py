"""A task's stream of messages, whose agents are stopped in order when nobody wants it any more."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar

from autogen_agentchat.base import ChatAgent, TaskResult, Team
from autogen_agentchat.messages import BaseChatMessage
from autogen_core import CancellationToken

from codeact_team.aio import to_the_end
from codeact_team.autogen_internals import time_limit
from codeact_team.effects import Door
from codeact_team.events import MessageSent

T = TypeVar("T")

STOP_GRACE = 5.0
"""Seconds that agents get to end their work when a run is stopped, before they are abandoned."""


TIME_LIMIT = "the time limit of"
"""How it begins why a run has stopped that got no more time; to go on, it needs no other config."""


class TimeLimitReached(Exception):
    """A time limit has stopped a run; the text says which."""


async def stream(
    runner: Team | ChatAgent,
    task: str | BaseChatMessage,
    door: Door,
    stopping: Callable[[], object],
    *,
    seconds: float | None,
) -> str | None:
    """Run the task, tell each message at the door, and return why the team stopped.

    Args:
        runner: The team, or a single agent.
        task: What to do.
        door: Where the messages are told.
        stopping: Called before the agents are cancelled, where nobody waits for their work any more.
        seconds: Wall-clock time that they may work; ``None`` for any.

    Raises:
        TimeLimitReached: If it took longer than ``seconds``, or than a time limit of the team's own; its agents have been
            stopped.
    """
    reached = TIME_LIMIT
    if (own := time_limit(runner)) is not None and (seconds is None or own <= seconds):
        seconds, reached = own, "the team's time limit of"
    token = CancellationToken()

    def stop() -> None:
        stopping()
        token.cancel()

    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            return await stopped_in_order(_consume(runner, task, door, token, stop), stop)
    except TimeoutError:
        if limit.expired():
            raise TimeLimitReached(f"{reached} {seconds:g} seconds is reached") from None
        raise


async def stopped_in_order(work: Awaitable[T], stop: Callable[[], object]) -> T:
    """Await the work of agents; where whoever awaits it is cancelled, call ``stop``, and give them time to end it.

    A stream of AutoGen's that is cancelled waits for its agents, and only its token reaches these.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except BaseException:
        stop()
        await to_the_end(_end(task))
        raise


async def _consume(
    runner: Team | ChatAgent,
    task: str | BaseChatMessage,
    door: Door,
    token: CancellationToken,
    stop: Callable[[], object],
) -> str | None:
    messages, stop_reason = runner.run_stream(task=task, cancellation_token=token), None
    try:
        async for item in messages:
            if isinstance(item, TaskResult):
                stop_reason = item.stop_reason
            else:
                door.tell(MessageSent(message=item))
    except BaseException:
        # first this: a stream that is closed waits for its agents
        stop()
        with suppress(asyncio.CancelledError):
            await messages.aclose()
        raise
    return stop_reason


async def _end(work: asyncio.Future[Any]) -> None:
    await asyncio.wait({work}, timeout=STOP_GRACE)
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
