"""Making a team fit for the next task after a run that did not come to its end.

AutoGen's group chats keep the speaker whose turn broke off as one that still has to answer: the next run stops after
its first speaker, and ``reset`` does not mend it. What was going on, and who has to speak, is kept by the runtime, so
the team gets a new one; what the agents remember is their own, and stays.
"""

from __future__ import annotations

import asyncio

from autogen_agentchat.base import ChatAgent, Team
from autogen_agentchat.teams import BaseGroupChat
from autogen_core import SingleThreadedAgentRuntime


async def renew(runner: Team | ChatAgent) -> None:
    """Let the next task begin with the first speaker again; a single agent needs nothing.

    Messages that a participant was still to be given are dropped: they may hold code that has run already.
    """
    if not isinstance(runner, BaseGroupChat):
        return
    for participant in runner._participants:  # pyright: ignore[reportPrivateUsage]
        await renew(participant)
    if (condition := runner._termination_condition) is not None:  # pyright: ignore[reportPrivateUsage]
        await condition.reset()
    # an agent that was abandoned may still be at work, for nobody
    runner._output_message_queue = asyncio.Queue()  # pyright: ignore[reportPrivateUsage]
    runner._runtime = SingleThreadedAgentRuntime(ignore_unhandled_exceptions=False)  # pyright: ignore[reportPrivateUsage]
    runner._initialized = False  # pyright: ignore[reportPrivateUsage]
    runner._is_running = False  # pyright: ignore[reportPrivateUsage]
