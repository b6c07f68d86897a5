"""What makes code stop: a cancellation, its time, or a workspace that has grown too much."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from autogen_core import CancellationToken

from codeact_team.aio import Timer, to_the_end
from codeact_team.execution import HostTools
from codeact_team.executors.place import Place

T = TypeVar("T")


class Call:
    """One call of an executor: whose code runs, what it may use, and what stops it.

    Attributes:
        stop: Done once the code has to stop, for whatever reason; cancelled by whoever cancels the call.
        timed_out: Whether the reason is the time of a block.
        block_ended: Whether the present block has ended by itself, so that its time does not count any more.
        exceeded: The limit of the workspace that is the reason, by the config field that sets it.
    """

    def __init__(
        self, cancellation_token: CancellationToken, user: object, tools: HostTools | None, place: Place
    ) -> None:
        self.stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.user = user
        self.tools = tools
        self.timed_out = False
        self.block_ended = False
        self.exceeded: str | None = None
        self._place = place
        self._time: Timer | None = None
        self._next_look: asyncio.TimerHandle | None = None
        """When the workspace is looked at next."""
        self._looking: asyncio.Task[None] | None = None
        cancellation_token.link_future(self.stop)

    @property
    def deadline(self) -> float:
        """When the time of the present block is over, in seconds of the event loop's clock."""
        return self._timer.deadline

    def paused(self) -> AbstractContextManager[None]:
        """Within it, or several of it, the time of the present block does not run."""
        return self._timer.paused()

    def begin_block(self, seconds: float) -> None:
        """Give a block its time."""
        self.block_ended = False
        if self._time is None:
            self._look_in(self._place.growth.pause)
        else:
            self._time.close()
        self._time = Timer(asyncio.get_running_loop().time() + seconds, self._time_out)

    async def end(self) -> None:
        """Stop nothing any more; wait for a look at the workspace that is under way. Idempotent."""
        if self._time is None:
            return
        self._time.close()
        # it refers to this call: whoever is its user would live on with it
        self._time = None
        growth = self._place.growth
        if self._next_look is not None:
            self._next_look.cancel()
            # short calls add up
            growth.pause = max(0.0, self._next_look.when() - asyncio.get_running_loop().time())
        if self._looking is not None:
            await to_the_end(self._looking)
        if self.exceeded is not None:
            # what code has added while it was being ended is not the next block's
            await growth.look()

    @property
    def _timer(self) -> Timer:
        assert self._time is not None, "a block has begun"
        return self._time

    def _time_out(self) -> None:
        if not (self.block_ended or self.stop.done()):
            self.timed_out = True
            self.stop.set_result(None)

    def _look_in(self, seconds: float) -> None:
        self._next_look = asyncio.get_running_loop().call_later(seconds, self._begin_look)

    def _begin_look(self) -> None:
        self._next_look, self._looking = None, asyncio.ensure_future(self._look())

    async def _look(self) -> None:
        growth = self._place.growth
        self.exceeded = await growth.look()
        if self.exceeded is None:
            if self._time is not None:
                self._look_in(growth.pause)
        elif not self.stop.done():
            self.stop.set_result(None)


async def first(
    work: Coroutine[Any, Any, T],
    stop: asyncio.Future[None] | None,
    deadline: float | None = None,
    *,
    undo: Callable[[T], Awaitable[None]] | None = None,
) -> T | None:
    """The result of ``work``; ``None`` if ``stop`` or the deadline, in the loop's seconds, comes first.

    ``undo`` is called with a result that the caller never gets, as they are cancelled in the moment in which it comes.
    """
    left = None if deadline is None else deadline - asyncio.get_running_loop().time()
    if (left is not None and left <= 0) or (stop is not None and stop.done()):
        # asked before the work: a flood of output is always ready first
        work.close()
        return None
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait(
            {task} if stop is None else {task, stop}, timeout=left, return_when=asyncio.FIRST_COMPLETED
        )
        await _cancelled(task)
    except BaseException:
        await to_the_end(_cancelled(task))
        if undo is not None and not task.cancelled() and task.exception() is None:
            await to_the_end(undo(task.result()))
        raise
    return None if task.cancelled() else task.result()


async def _cancelled(task: asyncio.Future[Any]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait({task})


def deadline_after(seconds: float) -> float:
    """The moment ``seconds`` from now, in seconds of the event loop's clock."""
    return asyncio.get_running_loop().time() + seconds
