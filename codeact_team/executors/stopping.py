"""What makes code stop: a cancellation, its time, or a workspace that has grown too much."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from autogen_core import CancellationToken

from codeact_team.aio import to_the_end
from codeact_team.execution import HostTools
from codeact_team.executors.place import Place

T = TypeVar("T")


class Call:
    """One call of an executor: whose code runs, what it may use, and what stops it.

    Args:
        cancellation_token: Stops it.
        user: Whose code it is.
        tools: What the code may call on the host.
        watch: Watches over it once it has its turn.

    Attributes:
        stop: Done once the code has to stop, for whatever reason; cancelled by whoever cancels the call.
        timed_out: Whether the reason is the time of a block.
        block_ended: Whether the present block has ended by itself, so that its time does not count any more.
        exceeded: The limit of the workspace that is the reason, by the config field that sets it.
        files: What its blocks have put into the workspace, and what is not a part of the work.
    """

    def __init__(
        self,
        cancellation_token: CancellationToken,
        user: object,
        tools: HostTools | None,
        watch: Watch,
    ) -> None:
        self.stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.user = user
        self.tools = tools
        self.timed_out = False
        self.block_ended = False
        self.exceeded: str | None = None
        self.files: list[str] = []
        self._watch = watch
        cancellation_token.link_future(self.stop)

    @property
    def deadline(self) -> float:
        """When the time of the present block is over, in seconds of the event loop's clock."""
        return self._watch.deadline

    def paused(self) -> AbstractContextManager[None]:
        """Within it, or several of it, the time of the present block does not run."""
        return self._watch.paused()

    def time_out(self) -> None:
        """Stop it, as the time of a block is over."""
        if not (self.block_ended or self.stop.done()):
            self.timed_out = True
            self.stop.set_result(None)

    def exceed(self, field: str) -> None:
        """Stop it, as the workspace has grown too much."""
        self.exceeded = field
        if not self.stop.done():
            self.stop.set_result(None)


class Watch:
    """Stops the code of one call at a time when its time is over, or when the workspace has grown too much.

    Its one timer is left to ring when a block has ended: most blocks end long before, and the next one needs it again.

    Args:
        place: Whose workspace it is.

    Attributes:
        call: The call that is watched over.
        deadline: When the time of the present block is over, in seconds of the event loop's clock.
    """

    def __init__(self, place: Place) -> None:
        self.deadline = math.inf
        self._place = place
        self.call: Call | None = None
        self._look_at: float | None = None
        """When the workspace is looked at next; ``None`` until code runs."""
        self._looking: asyncio.Task[None] | None = None
        self._pauses = 0
        self._left = 0.0
        self._block = 0
        self._rings_at = math.inf
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, call: Call) -> None:
        """Watch over a call, until :meth:`end`."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._rings_at = loop, math.inf
        self.call = call
        self._look_at = None

    def begin_block(self, seconds: float) -> None:
        """Give a block of the call its time."""
        assert self._loop is not None, "a call has begun"
        self._block += 1
        self._pauses = 0
        now = self._loop.time()
        self.deadline = now + seconds
        if self._look_at is None:
            self._look_at = now + self._place.growth.pause
        self._set()

    async def end(self) -> None:
        """Watch over the call no more; wait for a look at the workspace that is under way."""
        call, self.call, self.deadline = self.call, None, math.inf
        assert call is not None, "a call has begun"
        assert self._loop is not None, "a call has begun"
        self._block += 1
        growth = self._place.growth
        if self._looking is not None:
            looking, self._looking = self._looking, None
            await to_the_end(looking)
        elif call.exceeded is None and self._look_at is not None:
            # short calls add up
            growth.pause = max(0.0, self._look_at - self._loop.time())
        if call.exceeded is not None:
            # what code has added while it was being ended is not the next block's
            await growth.look()

    @contextmanager
    def paused(self) -> Generator[None]:
        """Within it, or several of it, the time of the present block does not run."""
        assert self._loop is not None, "a call has begun"
        block = self._block
        self._pauses += 1
        if self._pauses == 1:
            self._left, self.deadline = self.deadline - self._loop.time(), math.inf
        try:
            yield
        finally:
            if block == self._block:
                self._pauses -= 1
                if not self._pauses:
                    self.deadline = self._loop.time() + self._left
                    self._set()

    def _set(self) -> None:
        due = self.deadline if self._look_at is None else min(self.deadline, self._look_at)
        if due < self._rings_at:
            assert self._loop is not None, "a call has begun"
            self._rings_at = due
            self._loop.call_at(due, self._ring, self._loop, due)

    def _ring(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        if (loop, due) != (self._loop, self._rings_at):
            # of another event loop, or later than another one
            return
        self._rings_at = math.inf
        if (call := self.call) is None:
            return
        now = loop.time()
        if now >= self.deadline:
            self.deadline = math.inf
            call.time_out()
        if self._look_at is not None and now >= self._look_at:
            self._look_at = math.inf
            self._looking = asyncio.ensure_future(self._look(call))
        self._set()

    async def _look(self, call: Call) -> None:
        growth = self._place.growth
        if (limit := await growth.look()) is not None:
            call.exceed(limit)
        elif self.call is call and self._loop is not None:
            self._looking = None
            self._look_at = self._loop.time() + growth.pause
            self._set()


async def first(
    work: Coroutine[Any, Any, T],
    stop: asyncio.Future[None] | None,
    deadline: float | None = None,
    *,
    undo: Callable[[T], Awaitable[None]] | None = None,
) -> T | None:
    """The result of ``work``; ``None`` if ``stop`` or the deadline, in the loop's seconds, comes first.

    Args:
        work: What to wait for.
        stop: Ends the wait.
        deadline: Ends the wait.
        undo: Called with a result that the caller never gets, as they are cancelled in the moment in which it comes.
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
