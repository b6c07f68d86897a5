"""Gives the answers of a journal in the order in which they came then, where several ask side by side."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

logger = logging.getLogger(__name__)

_PATIENCE = 2.0
"""Seconds after which what is waited for is not asked any more."""
_GAP = 0.01
"""Seconds that whoever has got an answer has to make something of it, before another one that has waited gets its own."""


class RecordedOrder:
    """The order in which effects had ended.

    What had ended first does not depend on what ended later: it will be asked all the same, and the other one can wait.
    Without that, agents that work side by side would pass their messages on in another order, and ask something else.

    Args:
        ended: The numbers of the effects, in that order.
    """

    def __init__(self, ended: Sequence[int]) -> None:
        self._ranks = {n: rank for rank, n in enumerate(ended)}
        self._next = 0
        """The first rank that is not over."""
        self._over: set[int] = set()
        """Ranks behind that."""
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._is_kept = True

    async def turn(self, n: int) -> None:
        """Wait until all that had ended before the effect with the number ``n`` is over; then it is over itself."""
        if (rank := self._ranks.get(n)) is None:
            return
        try:
            if rank > self._next and self._is_kept:
                await self._wait(rank)
        finally:
            self._pass(rank)

    async def _wait(self, rank: int) -> None:
        waiting = self._waiting[rank] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(_PATIENCE):
                await waiting
        except TimeoutError:
            # the run goes another way, such as after a change of its config
            logger.info("what was asked side by side is not asked again as it was")
            self._is_kept = False
            for other in self._waiting.values():
                other.get_loop().call_soon_threadsafe(_release, other)
        finally:
            del self._waiting[rank]

    def _pass(self, rank: int) -> None:
        self._over.add(rank)
        while self._next in self._over:
            self._over.remove(self._next)
            self._next += 1
        if (waiting := self._waiting.get(self._next)) is not None:
            loop = waiting.get_loop()
            loop.call_soon_threadsafe(loop.call_later, _GAP, _release, waiting)


def _release(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
