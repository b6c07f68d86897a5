"""Functions and iterables of a program that has no coroutines: they run in a thread, as they may take their time."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from functools import partial
from typing import ParamSpec

from codeact_team.core.aio import to_the_end

P = ParamSpec("P")

_PIECE = 64 * 1024


def as_coroutine(callback: Callable[P, Awaitable[None] | None]) -> Callable[P, Awaitable[None]]:
    """The callback as a coroutine function. A plain function is called in a thread."""
    if inspect.iscoroutinefunction(callback):
        return callback

    async def call(*args: P.args, **kwargs: P.kwargs) -> None:
        returned = await to_the_end(asyncio.to_thread(_called, callback, *args, **kwargs))
        if inspect.isawaitable(returned):
            await returned

    return call


async def as_async_iterable(pieces: Iterable[bytes]) -> AsyncGenerator[bytes]:
    """The items of an iterable, or the content of a file that is open for reading; a thread waits for each piece."""
    read = getattr(pieces, "read1", None)
    # lines would be many small pieces
    iterator = iter(pieces) if read is None else iter(partial(read, _PIECE), b"")
    while (piece := await asyncio.to_thread(next, iterator, None)) is not None:
        yield piece


def _called(callback: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> object:
    try:
        return callback(*args, **kwargs)
    except (StopIteration, SystemExit) as error:
        # a future cannot hold the one, and the other would end the event loop
        raise RuntimeError(f"the callback raised {error!r}") from error
