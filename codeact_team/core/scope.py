"""A scope owns the executors that are made or started inside it, and stops them.

AutoGen closes no agents, and a team's participants are private. So an executor registers itself with the scope it was
made in, found through a context variable, which the tasks of AutoGen's runtime inherit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Protocol, Self

_current: ContextVar[Scope | None] = ContextVar("codeact_team_scope", default=None)


class Startable(Protocol):
    """A part that a scope can own. Start and stop are idempotent."""

    async def start(self) -> None: ...

    async def stop(self) -> None: ...


class Scope:
    """An asynchronous context manager that stops the registered parts at its end.

    ``prewarm`` starts the registered parts in the background; if one cannot start, the body of the ``async with`` is
    cancelled and the error is raised from it.
    """

    def __init__(self) -> None:
        self._owned: list[Startable] = []
        self._at_end: list[Callable[[], Awaitable[None]]] = []
        self._tasks = asyncio.TaskGroup()
        self._starts: list[asyncio.Task[None]] = []
        self._token: Token[Scope | None] | None = None

    @property
    def owned(self) -> tuple[Startable, ...]:
        """The parts that this scope will stop."""
        return tuple(self._owned)

    def register(self, part: Startable) -> None:
        """Own ``part``: stop it when the scope ends."""
        if part not in self._owned:
            self._owned.append(part)

    def at_end(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Call and await ``callback`` when the scope ends, after everything is stopped."""
        self._at_end.append(callback)

    def prewarm(self, parts: Iterable[Startable] | None = None) -> None:
        """Start parts in the background; by default all that are registered."""
        for part in self._owned if parts is None else parts:
            self.begin(part.start())

    async def started(self, parts: Iterable[Startable] | None = None) -> None:
        """Wait until parts have started, by default all that are registered, or raise why one cannot."""
        for part in self.owned if parts is None else parts:
            await part.start()

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Work in the background. It is cancelled when the scope ends."""
        self._starts.append(self._tasks.create_task(work))

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._token = _current.set(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._token is not None
        _current.reset(self._token)
        async with AsyncExitStack() as stack:
            for callback in self._at_end:
                stack.push_async_callback(callback)
            for part in self._owned:
                stack.push_async_callback(part.stop)
            for start in self._starts:
                # nobody is left to use what still starts
                start.cancel()
            try:
                await self._tasks.__aexit__(kind, error, trace)
            except BaseExceptionGroup as group:
                # a TaskGroup wraps even a single failure; the caller is owed the error itself, and its cause
                failure = group.exceptions[0]
                raise failure from failure.__cause__


def register(part: Startable) -> None:
    """Register a part with the current scope, if there is one."""
    if (scope := _current.get()) is not None:
        scope.register(part)


def at_end(callback: Callable[[], Awaitable[None]]) -> None:
    """Add a callback to the end of the current scope, if there is one."""
    if (scope := _current.get()) is not None:
        scope.at_end(callback)
