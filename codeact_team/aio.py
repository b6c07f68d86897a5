"""What asyncio lacks: awaiting to the end, or until AutoGen's token cancels; turns across event loops; timers that stop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from contextlib import contextmanager
from types import TracebackType
from typing import TypeVar

from autogen_core import CancellationToken

T = TypeVar("T")


async def to_the_end(work: Awaitable[T]) -> T:
    """Await ``work`` to its end even if cancelled meanwhile, and only then raise the cancellation.

    For clean-up, and for work in a thread that cannot be stopped half-way.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            raise cancelled from failure
        raise cancelled
    return task.result()


async def until_cancelled(work: Awaitable[T], cancellation_token: CancellationToken) -> T:
    """Await ``work``, which the token cancels, too."""
    waiting = asyncio.ensure_future(work)
    cancellation_token.link_future(waiting)
    return await waiting


class Turns:
    """First come, first served: one holder at a time, whatever event loop or thread each comes from.

    ``asyncio.Lock`` binds itself to the first loop in which somebody has to wait.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._taken = False
        self._waiting: deque[Future[None]] = deque()

    @property
    def taken(self) -> bool:
        """Whether somebody holds the turn."""
        return self._taken

    async def __aenter__(self) -> None:
        with self._mutex:
            if not self._taken:
                self._taken = True
                return
            ticket: Future[None] = Future()
            self._waiting.append(ticket)
        try:
            await asyncio.wrap_future(ticket)
        except asyncio.CancelledError:
            with self._mutex:
                # the turn may have come, or be coming from another thread, in the very moment of the cancellation
                came = ticket.done() and not ticket.cancelled()
            if came:
                self._pass_on()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pass_on()

    def _pass_on(self) -> None:
        with self._mutex:
            while self._waiting:
                ticket = self._waiting.popleft()
                if ticket.set_running_or_notify_cancel():
                    ticket.set_result(None)
                    return
            self._taken = False


class Timer:
    """Calls back once when its time has come, unless it is closed before. Needs a running event loop.

    Args:
        deadline: When that is, in seconds of the event loop's clock.
        callback: What is called.
    """

    def __init__(self, deadline: float, callback: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._callback = callback
        self._handle = self._loop.call_at(deadline, self._fire)
        self._pauses = 0
        self._left = 0.0
        self._closed = False

    @contextmanager
    def paused(self) -> Generator[None]:
        """Within it, or several of it, the deadline moves on with the clock."""
        self._pauses += 1
        if self._pauses == 1:
            self._handle.cancel()
            self._left = self._handle.when() - self._loop.time()
        try:
            yield
        finally:
            self._pauses -= 1
            if not (self._pauses or self._closed):
                self._handle = self._loop.call_later(self._left, self._fire)

    def close(self) -> None:
        """Call back no more."""
        self._closed = True
        self._handle.cancel()

    def _fire(self) -> None:
        self._closed = True
        self._callback()
