"""Watching over the time of a block: when it is over, or nobody wants it any more, the block is made to end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from codeact_team.aio import Timer
from codeact_team.sandboxes.base import Sandbox
from codeact_team.sessions.protocol import Kind, frame

INTERRUPT_GRACE = 1.0
"""Seconds between SIGINT, by which the variables live on, and the end of the interpreter. A long regular expression
takes 0.3 to notice it."""
KILL_GRACE = 1.0
"""Seconds that the supervisor gets to end what runs, before the sandbox does it."""


class Watch:
    """Ends a block step by step, from the moment that ``stop`` is done or the deadline has come.

    It costs a timer and a callback, and a task only once there is something to end.

    Args:
        sandbox: Where the block runs.
        send: Sends a frame to the supervisor.
        stop: Stops the block.
        deadline: When its time is over, in seconds of the event loop's clock.

    Attributes:
        timed_out: Whether the deadline came first.
        paused: See :meth:`codeact_team.aio.Timer.paused`.
        on_expiry: Called when the block is begun to be ended.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        send: Callable[[bytes], Awaitable[None]],
        *,
        stop: asyncio.Future[None],
        deadline: float,
    ) -> None:
        self._sandbox = sandbox
        self._send = send
        self._stop = stop
        self._escalation: asyncio.Task[None] | None = None
        self._timer = Timer(deadline, self._time_over)
        self.paused = self._timer.paused
        self.timed_out = False
        self.on_expiry: Callable[[], None] | None = None
        stop.add_done_callback(self._stopped)

    def expire(self) -> None:
        """Begin to end the block now."""
        if self._escalation is None:
            self._timer.close()
            # first the interrupt, so that the code is not taken to have ended by itself
            self._escalation = asyncio.ensure_future(self._escalate())
            if self.on_expiry is not None:
                self.on_expiry()

    async def aclose(self) -> None:
        """End the watch."""
        self._timer.close()
        self._stop.remove_done_callback(self._stopped)
        if self._escalation is not None:
            self._escalation.cancel()
            await asyncio.wait({self._escalation})

    def _time_over(self) -> None:
        self.timed_out = not self._stop.done()
        self.expire()

    def _stopped(self, _: asyncio.Future[None]) -> None:
        self.expire()

    async def _escalate(self) -> None:
        # a second one, for code that swallows the first, as a destructor does
        interrupts = ((Kind.INTERRUPT, INTERRUPT_GRACE / 2),) * 2
        for urge, grace in (*interrupts, (Kind.KILL, KILL_GRACE)):
            with suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self._send(frame(urge))
                    await asyncio.sleep(grace)
        await self._sandbox.kill()
        await asyncio.sleep(KILL_GRACE)
        await self._sandbox.stop()
