"""Watching over one program: its output while it has time, and its certain end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

from autogen_core import CancellationToken

from codeact_team.execution import HostTools
from codeact_team.sandboxes.base import Process, Sandbox

T = TypeVar("T")

INTERRUPT_GRACE = 0.5
"""Seconds between SIGINT, which lets Python say where it was, and SIGKILL."""
LAST_WORDS_GRACE = 1.0
"""Seconds for what a killed program has written to arrive."""


class Call:
    """One call: its cancellation, what its code may use, the current block's deadline, and the files it has written."""

    def __init__(self, cancellation_token: CancellationToken, tools: HostTools | None = None) -> None:
        self.stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.tools = tools
        self.deadline = 0.0
        self.timed_out = False
        self.files: list[str] = []
        cancellation_token.link_future(self.stop)


async def communicate(
    process: Process, code: str, sandbox: Sandbox, call: Call
) -> AsyncGenerator[bytes, None]:
    """The output of a block until it ends, or until its time is over or the caller stops it."""
    await first(_send(process, code.encode(errors="replace")), call.stop, call.deadline)
    while True:
        chunk = await first(process.read(), call.stop, call.deadline)
        if chunk is None:
            call.timed_out = not call.stop.done()
            break
        if not chunk:
            return
        yield chunk
    async with aclosing(_terminate(process, sandbox)) as chunks:
        async for chunk in chunks:
            yield chunk


async def _send(process: Process, data: bytes) -> None:
    await process.write(data)
    # only now: half a program must not be run
    await process.close_stdin()


async def _terminate(process: Process, sandbox: Sandbox) -> AsyncGenerator[bytes, None]:
    """Stop everything inside: by SIGINT, then for certain. Yields the last words."""
    loop = asyncio.get_running_loop()
    # in any case both: where the program ends by SIGINT, what it forked may not
    for signal, grace in ((sandbox.interrupt, INTERRUPT_GRACE), (sandbox.kill, LAST_WORDS_GRACE)):
        await signal()
        deadline = loop.time() + grace
        while chunk := await first(process.read(), None, deadline):
            yield chunk


async def end(process: Process, sandbox: Sandbox) -> None:
    """Stop everything inside, for a caller who wants no more output."""
    async with aclosing(_terminate(process, sandbox)) as chunks:
        async for _ in chunks:
            pass


async def first(
    work: Coroutine[Any, Any, T], stop: asyncio.Future[None] | None, deadline: float | None
) -> T | None:
    """The result of ``work``; ``None`` if ``stop`` or the deadline, in the loop's seconds, comes first."""
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
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    return None if task.cancelled() else task.result()
