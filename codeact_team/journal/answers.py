"""Answers the effects of a run from the history of a run."""

from __future__ import annotations

import asyncio
import logging
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from codeact_team.agents.codeact.attempts import Attempt
from codeact_team.core.effects import Effect, Perform
from codeact_team.core.executor_interface import StreamingCodeExecutor
from codeact_team.errors import RecordedError
from codeact_team.journal.effect_records import EffectRecord
from codeact_team.journal.history import History
from codeact_team.journal.journal import JournalPolicy
from codeact_team.journal.requests import Request, recorded_error
from codeact_team.text.redaction import Redactor

logger = logging.getLogger(__name__)

NOT_ASKED = "this code did not ask for this when it ran first"
"""The error for code that asks for something in addition."""
_PATIENCE = 2.0
"""Seconds after which the recorded order is given up: the run has taken another way."""
_GAP = 0.01
"""Seconds that a caller gets to act on its answer before the next one in line gets its own."""


class RecordedAnswers(JournalPolicy):
    """Answers effects from a history, in the recorded order.

    Code, and what the history does not have: :class:`Resumption` does it again, :class:`Replay` compares what code does, and
    refuses the rest.

    Args:
        history: The history.
        redactor: Replaces credentials by placeholders.
    """

    def __init__(self, history: History, redactor: Redactor) -> None:
        self._history = history
        self._redactor = redactor
        self._order = _RecordedOrder(history.effects.order)

    async def perform(self, effect: Effect[Any], request: Request, do: Perform) -> Any:
        # the effects within an attempt are answered, whatever has become of it
        is_attempt = isinstance(effect, Attempt)
        record = self._history.effects.next(request) if is_attempt else self._find(effect, request)
        if record is None:
            return await self._perform_unknown(effect, request, do)
        return await self._answer(effect, request, record, do)

    @abstractmethod
    def _find(self, effect: Effect[Any], request: Request) -> EffectRecord | None:
        """Take the recorded effect that answers a request."""

    @abstractmethod
    async def _perform_unknown(self, effect: Effect[Any], request: Request, do: Perform) -> Any:
        """Perform an effect that the history does not have, or refuse it."""

    @abstractmethod
    async def _answer(self, effect: Effect[Any], request: Request, record: EffectRecord, do: Perform) -> Any:
        """Answer an effect that the history has."""

    def _outcome(self, effect: Effect[Any], record: EffectRecord) -> Any:
        return effect.load(self._redactor.restore(self._history.outcome(record)))

    def _error(self, record: EffectRecord) -> RecordedError:
        return recorded_error(self._history.error(record), self._redactor)


async def is_contained(executor: object) -> bool:
    """Whether the code of an executor cannot reach more than its workspace. Starts it, as only then that is known."""
    if not isinstance(executor, StreamingCodeExecutor):
        return False
    await executor.start()
    return executor.is_contained


class _RecordedOrder:
    """Lets effects end in the order in which they had ended.

    An effect that ended first does not depend on those that ended later, so it is asked again in any case, and the others
    can wait for it. Otherwise agents that work in parallel would pass their messages on in another order, and ask something
    else.

    Args:
        ended: The numbers of the effects in the order of their ends.
    """

    def __init__(self, ended: Sequence[int]) -> None:
        self._ranks = {n: rank for rank, n in enumerate(ended)}
        self._next = 0
        """The first rank that has not passed."""
        self._passed: set[int] = set()
        """Ranks above it that have."""
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._is_kept = True

    async def turn(self, n: int) -> None:
        """Wait until all effects that had ended before the effect ``n`` have passed, then pass it."""
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
            # the run takes another way, such as after a change of its config
            logger.info("parallel effects are not requested in the recorded order")
            self._is_kept = False
            for other in self._waiting.values():
                other.get_loop().call_soon_threadsafe(_release, other)
        finally:
            del self._waiting[rank]

    def _pass(self, rank: int) -> None:
        self._passed.add(rank)
        while self._next in self._passed:
            self._passed.remove(self._next)
            self._next += 1
        if (waiting := self._waiting.get(self._next)) is not None:
            loop = waiting.get_loop()
            loop.call_soon_threadsafe(loop.call_later, _GAP, _release, waiting)


def _release(waiting: asyncio.Future[None]) -> None:
    if not waiting.done():
        waiting.set_result(None)
