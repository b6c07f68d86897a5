"""Helpers that asyncio lacks: awaiting to the end, or until AutoGen's token cancels; turns across event loops; timers that stop."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Any, Generic, Self, TypeVar
from weakref import WeakKeyDictionary

from autogen_core import CancellationToken

T = TypeVar("T")
R = TypeVar("R")

_FEW = 500
"""Small things that are looked at in less time than it takes to change to a thread and back."""


async def to_the_end(work: Awaitable[T]) -> T:
    """Await ``work`` to its end even if cancelled meanwhile, and only then raise the cancellation.

    If its generator is closed meanwhile, as at the end of an event loop, the loop ends only after ``work``.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
        except GeneratorExit:
            _let_loop_wait(task)
            raise
    if cancelled is not None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            raise cancelled from failure
        raise cancelled
    return task.result()


async def accompanied(work: Coroutine[Any, Any, object], main: Coroutine[Any, Any, T]) -> T:
    """Await ``main``, and return its result. ``work`` runs meanwhile: its failure ends both, the end of ``main`` ends it."""
    working, leading = asyncio.ensure_future(work), asyncio.ensure_future(main)
    try:
        await asyncio.wait({working, leading}, return_when=asyncio.FIRST_COMPLETED)
        if not leading.done():
            working.result()
        return await leading
    finally:
        working.cancel()
        leading.cancel()
        await to_the_end(asyncio.wait({working, leading}))


class _Unfinished:
    """The tasks that an event loop waits for before it ends."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Future[Any]] = set()
        # an ending loop closes the generators that it has seen begin
        self._last = self._wait()
        with suppress(StopIteration):
            _first(self._last, firstiter=sys.get_asyncgen_hooks().firstiter).send(None)

    async def _wait(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            while self.tasks:
                await asyncio.wait(self.tasks)


_unfinished: WeakKeyDictionary[asyncio.AbstractEventLoop, _Unfinished] = WeakKeyDictionary()


def _let_loop_wait(task: asyncio.Future[Any]) -> None:
    loop = task.get_loop()
    if not loop.is_closed():
        tasks = _unfinished.setdefault(loop, _Unfinished()).tasks
        tasks.add(task)
        task.add_done_callback(tasks.discard)


async def until_cancelled(work: Awaitable[T], cancellation_token: CancellationToken) -> T:
    """Await ``work``, which the token cancels, too."""
    waiting = asyncio.ensure_future(work)
    cancellation_token.link_future(waiting)
    return await waiting


def is_being_cancelled() -> bool:
    """Whether somebody cancels the task that runs this, and not only what it waits for: then it has to end as cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def beside_the_loop(size: int, work: Callable[[], T]) -> T:
    """Do work on so many small things: at once, or in a thread where that would hold the loop up."""
    return work() if size < _FEW else await asyncio.to_thread(work)


class FairLock:
    """A semaphore for any event loops and threads, first come, first served; ``places`` holders at a time.

    ``asyncio.Lock`` binds itself to the first loop in which a task has to wait.
    """

    def __init__(self, places: int = 1) -> None:
        self._mutex = threading.Lock()
        self._free = places
        self._waiting: deque[Future[None]] = deque()

    @property
    def taken(self) -> bool:
        """Whether whoever comes now has to wait."""
        return not self._free

    async def acquire(self, stop: asyncio.Future[None] | None = None) -> bool:
        """Wait for the turn until ``stop`` is done; whether it came. The holder must :meth:`pass_on`."""
        with self._mutex:
            if self._free:
                self._free -= 1
                return True
            ticket: Future[None] = Future()
            self._waiting.append(ticket)
        coming = asyncio.wrap_future(ticket)
        try:
            await asyncio.wait(
                {coming} if stop is None else {coming, stop}, return_when=asyncio.FIRST_COMPLETED
            )
        except asyncio.CancelledError:
            # the turn may have come, or be coming from another thread, in the very moment of the cancellation
            if not ticket.cancel():
                self.pass_on()
            raise
        return not ticket.cancel()

    def pass_on(self) -> None:
        """Give up the turn."""
        with self._mutex:
            while self._waiting:
                ticket = self._waiting.popleft()
                if ticket.set_running_or_notify_cancel():
                    ticket.set_result(None)
                    return
            self._free += 1

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(self, *_: object) -> None:
        self.pass_on()


async def streamed(
    work: Callable[[Callable[[T], Awaitable[None]]], Awaitable[R]],
) -> AsyncGenerator[T | R, None]:
    """Turn a coroutine that emits items and returns a result into an asynchronous generator.

    Args:
        work: Receives an asynchronous function to emit items with, which returns when the next item is requested. It runs as
            a task. A generator that is closed cancels it, and waits for its end.

    Yields:
        The items, then the result of ``work``, or its exception is raised.
    """
    arrived: asyncio.Queue[tuple[T, asyncio.Future[None]] | None] = asyncio.Queue()

    async def emit(item: T) -> None:
        wanted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        arrived.put_nowait((item, wanted))
        await wanted

    task = asyncio.ensure_future(work(emit))
    task.add_done_callback(lambda _: arrived.put_nowait(None))
    try:
        while (pair := await arrived.get()) is not None:
            item, wanted = pair
            yield item
            if not wanted.done():
                wanted.set_result(None)
        yield task.result()
    finally:
        if not task.done():
            task.cancel()
            await to_the_end(asyncio.wait({task}))
        if not task.cancelled():
            task.result()


class aclosing(Generic[T]):
    """As ``contextlib.aclosing``, for an asynchronous generator inside another one, which has not begun.

    The event loop knows only of the outermost one: at its end it closes all it knows of concurrently, and an inner one
    cannot be closed while the outer one is closing it.
    """

    def __init__(self, items: AsyncGenerator[T, None]) -> None:
        self._items = items
        self._has_begun = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._items.aclose()

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[T]:
        if self._has_begun:
            return self._items.__anext__()
        self._has_begun = True
        return _first(self._items, firstiter=None)


def _first(
    items: AsyncGenerator[T, None], *, firstiter: Callable[[AsyncGenerator[Any, Any]], None] | None
) -> Coroutine[Any, Any, T]:
    """The first of the items, of a generator that no event loop is to close once it is unreachable."""
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(firstiter=firstiter, finalizer=lambda _: None)
    try:
        return items.__anext__()
    finally:
        sys.set_asyncgen_hooks(*hooks)


class Timer:
    """Calls back once at a deadline of the running event loop's clock, unless it is closed before."""

    def __init__(self, deadline: float, callback: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._callback = callback
        self._handle = self._loop.call_at(deadline, self._fire)
        self._pauses = 0
        self._paused_at = 0.0
        self._paused = 0.0
        self._left = 0.0
        self._closed = False

    @property
    def deadline(self) -> float:
        """When its time has come; what it was before, within a pause."""
        return self._handle.when()

    @property
    def closed(self) -> bool:
        """Whether it calls back no more: its time has come, or it was closed."""
        return self._closed

    @property
    def paused_for(self) -> float:
        """Seconds of all pauses so far; those that overlap count once."""
        return self._paused + (self._loop.time() - self._paused_at if self._pauses else 0.0)

    @property
    def left(self) -> float:
        """Seconds until its time comes, pauses apart; negative where it has come."""
        return self._left if self._pauses else self._handle.when() - self._loop.time()

    @left.setter
    def left(self, seconds: float) -> None:
        self._handle.cancel()
        self._left = seconds
        if not (self._pauses or self._closed):
            self._handle = self._loop.call_later(seconds, self._fire)

    @contextmanager
    def paused(self) -> Generator[None]:
        """Within it, or several of it, the deadline moves on with the clock."""
        self._pauses += 1
        if self._pauses == 1:
            self._handle.cancel()
            self._paused_at = self._loop.time()
            self._left = self._handle.when() - self._paused_at
        try:
            yield
        finally:
            if self._pauses == 1:
                self._paused = self.paused_for
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
