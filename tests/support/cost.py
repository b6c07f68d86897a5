"""What work costs, in processor time: that is the same on a machine on which much else happens."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

LINEAR = 2.5
"""How many times as long linear work may take for twice the input."""
_NOISE = 0.02
"""Seconds; what takes less depends on the processor's caches and on fresh pages of memory more than on the work."""
SHORT = 1.0
"""Seconds of processor time, all threads together, that may pass between two turns of a loop that stays responsive, on a
machine whose processors are busy with other tests."""


def growth(make: Callable[[int], T], work: Callable[[T], object], size: int, *, rounds: int = 5) -> float:
    """How many times as long the work takes for twice the input, the best of several rounds, on average of three doublings.

    Args:
        make: Makes the input of a size.
        work: What is measured.
        size: Half of the largest input.
        rounds: How often each is measured.
    """
    # the time of a single doubling depends on what fits into the processor's caches
    small, large = make(max(1, size // 4)), make(2 * size)
    best = [float("inf"), float("inf")]
    gc.disable()
    try:
        for place, given in [*enumerate((small, large))] * rounds:
            began = time.thread_time()
            work(given)
            best[place] = min(best[place], time.thread_time() - began)
    finally:
        gc.enable()
    return (best[1] / max(best[0], _NOISE)) ** (1 / 3)


@dataclass
class FairLock:
    """How long the turns of an event loop took.

    Attributes:
        longest: The longest time between two turns, in seconds of this process's processor time.
    """

    longest: float = 0.0


@asynccontextmanager
async def watched_turns() -> AsyncGenerator[FairLock]:
    """Within it, the turns of the running loop are measured."""
    turns, is_over = FairLock(), False

    async def turn() -> None:
        before = time.process_time()
        while not is_over:
            await asyncio.sleep(0)
            now = time.process_time()
            turns.longest, before = max(turns.longest, now - before), now

    watching = asyncio.create_task(turn())
    # it has begun
    await asyncio.sleep(0)
    try:
        yield turns
    finally:
        is_over = True
        await watching


async def longest_turn(work: Awaitable[object]) -> float:
    """The longest time between two turns of the loop while something is awaited, as :class:`FairLock` has it."""
    async with watched_turns() as turns:
        await work
    return turns.longest
