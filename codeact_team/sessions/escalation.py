"""How a block is made to end: an interrupt, by which the variables live on, and then whatever it takes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from codeact_team.sandboxes.base import Sandbox
from codeact_team.sessions.protocol import Kind, frame

INTERRUPT_GRACE = 1.0
"""Seconds between SIGINT, by which the variables live on, and the end of the interpreter. A long regular expression
takes 0.3 to notice it."""
KILL_GRACE = 1.0
"""Seconds that the supervisor gets to end what runs, before the sandbox does it."""


async def escalate(sandbox: Sandbox, send: Callable[[bytes], Awaitable[None]]) -> None:
    """End a block step by step, until this is cancelled because it has ended.

    Args:
        sandbox: Where it runs.
        send: Sends a frame to the supervisor.
    """
    # a second interrupt, for code that swallows the first, as a destructor does
    interrupts = ((Kind.INTERRUPT, INTERRUPT_GRACE / 2),) * 2
    for urge, grace in (*interrupts, (Kind.KILL, KILL_GRACE)):
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await send(frame(urge))
                await asyncio.sleep(grace)
    await sandbox.kill()
    await asyncio.sleep(KILL_GRACE)
    await sandbox.stop()
