"""Goes on with a run: what was done is answered from the journal."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from autogen_core.code_executor import CodeResult

from codeact_team.agents.codeact.attempts import Attempt, Fork, Promotion
from codeact_team.core.component_effects import CodeEffect, CodeRun
from codeact_team.core.effects import Effect, Perform
from codeact_team.core.execution import SessionResult
from codeact_team.core.executor_interface import ChangedFile, StreamingCodeExecutor
from codeact_team.core.places import place_of
from codeact_team.errors import JournalError, RecordedError
from codeact_team.runs.journal.history import EffectRecord, EffectState, History
from codeact_team.runs.journal.recorder import Recorder
from codeact_team.runs.journal.requests import (
    Request,
    asking,
    attempting,
    inside,
    recorded_error,
    request_of,
)
from codeact_team.runs.journal.restoration import END, Restoration, repetition
from codeact_team.tools.approvals import decided

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


_LOSS = (
    "The interpreter of the blocks before was lost: the run was interrupted, and its code was not run again, as {}. Their "
    "variables, imports and functions are gone; this block runs in a fresh one.\n"
)
_OTHERWISE = (
    "the run cannot go on: {} does something else than before, and might do again what it has done. Was a prompt, or a model, "
    "changed by -s? Then begin a new run"
)


class Resumption:
    """An interceptor that goes on with a run.

    Of attempts that are made side by side, those that one was chosen of are answered from the journal alone: its blocks are by
    then among those of its session. Before that, and where the work was over with it, so that higher limits may let them go on,
    branches are made anew, and the code of each attempt runs again in its own.

    Args:
        history: What is known.
        recorder: Writes down what is new.
    """

    def __init__(self, history: History, recorder: Recorder) -> None:
        self._history = history
        self._recorder = recorder
        self._restoration = Restoration(history, recorder)
        self._order = RecordedOrder(history.order)
        self._reached = 0
        """The number of the last entry that was an answer now."""
        self._forks: dict[Fork, str | None] = {}
        """Those whose branches were really made now, and why these lack what was in the interpreter, if so."""
        self._losses: dict[int, str] = {}
        """By the numbers of attempts, the same where their code has not heard of it."""
        self._session_losses: dict[str, str] = {}
        """By the places of executors, the same where an attempt is gone on with that has not."""
        self._attempts: dict[tuple[Fork, int], int] = {}
        """By what they come from, and counted from 1, the numbers of the attempts that are made."""
        self._is_over: set[int] = set()
        """The numbers of attempts that nothing is done for any more."""

    async def intercept(self, effect: Effect[Any], do: Perform) -> Any:
        """Answer an effect, or perform it.

        Raises:
            RecordedError: If it has failed before, and is not to be done again.
            JournalError: If the journal, or a workspace, is not what it was.
        """
        if isinstance(effect, Attempt):
            return await self._attempt(effect, do)
        request = await request_of(effect, self._recorder.redactor)
        if attempting() in self._is_over:
            return await self._told_of_attempt(effect, request)
        before = self._next(request.key, effect)
        if before is None:
            return await self._do(request, effect, do)
        self._recorder.begin(effect, request, before)
        await self._order.turn(before.n)
        self._reached = max(self._reached, before.n)
        if before.state is EffectState.ANSWERED:
            return await self._answer(effect, before, do)
        is_contained = await _is_contained(effect)
        # code that its sandbox has failed, last of all, can run as if the run had been killed just then
        if before.state is EffectState.FAILED and (before.went_on or not is_contained):
            raise await self._failed(effect, before)
        if before.is_not_begun:
            with decided() if self._history.is_decided(before) else nullcontext():
                return await self._recorder.perform(before.n, effect, do)
        if is_contained:
            loss = await self._restore(effect, before.n)
            return await self._recorder.perform(before.n, effect, partial(_after, loss, do))
        outcome = effect.unknown()
        await self._recorder.settle(effect, outcome)
        return outcome

    async def _failed(self, effect: Effect[Any], before: EffectRecord) -> RecordedError:
        """The error that an effect has raised before."""
        error = recorded_error(self._history.error(before), self._recorder.redactor)
        await self._recorder.fail(effect, error, is_known=True)
        return error

    def begin(self, executors: Sequence[StreamingCodeExecutor]) -> None:
        """Let executors know what their code had made or changed when the run ended. Blocks."""
        self._restoration.tell_changes(executors)

    async def finish(self, executors: Sequence[StreamingCodeExecutor]) -> Sequence[ChangedFile]:
        """Bring back the files of temporary workspaces that no code has run in since the run goes on, as they were then.

        Returns:
            Files that code had made or changed and that are not to be had any more.
        """
        return await self._restoration.restore_files(executors, self._reached)

    async def _do(self, request: Request, effect: Effect[Any], do: Perform) -> Any:
        """Do what was not asked before."""
        if (again := repetition()) is not None:
            again.has_strayed = True
            raise RecordedError("when this code ran first, it did not ask for this")
        if not request.is_of_block and effect.unknown() is not None and self._history.has_more(request):
            raise JournalError(_OTHERWISE.format(effect.source))
        loss = await self._restore(effect, END)
        n = self._recorder.begin(effect, request)
        if isinstance(effect, Promotion):
            return await self._promote(n, effect, do)
        return await self._recorder.perform(n, effect, partial(_after, loss, do))

    def _next(self, key: str, effect: Effect[Any]) -> EffectRecord | None:
        while (found := self._history.next(key, asking())) is not None:
            # what failed last is tried again, where that can do no harm
            if found.is_settled or found.is_not_begun or effect.unknown() is not None:
                return found
        return None

    async def _answer(self, effect: Effect[Any], before: EffectRecord, do: Perform) -> Any:
        if before.is_given:
            # what waited for it is not known to be undone from now on
            self._recorder.write(used=before.n)
        outcome = effect.load(self._recorder.redactor.restore(self._history.outcome(before)))
        if isinstance(effect, Promotion) and effect.fork in self._forks:
            # its branch was made anew
            return await self._promote(before.n, effect, do)
        if isinstance(effect, Fork) and outcome is None and await self._is_made_anew(effect, before):
            await self._restore(effect, before.n)
            if (refusal := await do()) is not None:
                raise JournalError(
                    f"the run cannot go on: its session cannot be copied as it was before: {refusal}"
                )
        else:
            await effect.skip()
        await self._recorder.settle(effect, outcome, is_known=True)
        return outcome

    async def _is_made_anew(self, fork: Fork, before: EffectRecord) -> bool:
        if not self._history.is_promoted(before):
            return True
        return self._history.may_go_on(before) and await _is_contained(fork)

    async def _promote(self, n: int, promotion: Promotion, do: Perform) -> Any:
        """Go on with a branch that was made anew; whose code has not heard of what it lacks, that of the session will."""
        attempt = self._attempts.get((promotion.fork, promotion.attempt), 0)
        if (loss := self._losses.pop(attempt, None)) is not None:
            self._session_losses[place_of(promotion.part)] = loss
        return await self._recorder.perform(n, promotion, do)

    async def _restore(self, effect: Effect[Any], n: int) -> str | None:
        """Bring back what code has left behind where something else is to be done with it now; why not, if so."""
        if isinstance(effect, CodeRun) and effect.is_apart:
            return self._losses.pop(attempting() or 0, None)
        loss = await self._restoration.restore(effect, n)
        if isinstance(effect, CodeRun | Fork):
            loss = self._session_losses.pop(place_of(effect.part), None) or loss
        if isinstance(effect, Fork):
            self._forks[effect] = loss
        return loss

    async def _attempt(self, attempt: Attempt, do: Perform) -> Any:
        """Make an attempt. What it has asked already is answered, whatever has become of it."""
        request = await request_of(attempt, self._recorder.redactor)
        before = self._history.next(request.key, asking())
        if before is None and attempt.fork not in self._forks:
            raise JournalError(_OTHERWISE.format(attempt.source))
        n = self._recorder.begin(attempt, request, before)
        self._attempts[attempt.fork, attempt.number] = n
        if attempt.fork not in self._forks:
            self._is_over.add(n)
        elif (loss := self._forks[attempt.fork]) or (
            loss := await self._restoration.restore_branch(attempt, n)
        ):
            self._losses[n] = loss
        if before is None or before.state is not EffectState.ANSWERED:
            return await self._recorder.perform(n, attempt, do)
        with inside(n, attempt):
            outcome = await do()
        await self._order.turn(n)
        self._reached = max(self._reached, n)
        await self._recorder.settle(attempt, outcome, is_known=True)
        return outcome

    async def _told_of_attempt(self, effect: Effect[Any], request: Request) -> Any:
        """What came of something that was asked in an attempt that is over.

        Raises:
            CancelledError: If it was cancelled then, as the time of the attempt was over.
            RecordedError: If it has failed.
            JournalError: If it was not asked.
        """
        last = None
        while (found := self._history.next(request.key, asking())) is not None:
            last = found
            if found.is_settled:
                # else it was asked once more when the run went on
                break
        if last is None:
            raise JournalError(_OTHERWISE.format(effect.source))
        self._recorder.begin(effect, request, last)
        if last.state is EffectState.ANSWERED:
            await effect.skip()
            outcome = effect.load(self._recorder.redactor.restore(self._history.outcome(last)))
            await self._recorder.settle(effect, outcome, is_known=True)
            return outcome
        if last.state is EffectState.FAILED:
            raise await self._failed(effect, last)
        cancelled = asyncio.CancelledError()
        await self._recorder.fail(effect, cancelled, is_cancelled=True, is_known=True)
        raise cancelled


async def _is_contained(effect: Effect[Any]) -> bool:
    if not (isinstance(effect, CodeEffect) and isinstance(executor := effect.part, StreamingCodeExecutor)):
        return False
    # what is enforced is known then
    await executor.start()
    return executor.is_contained


async def _after(loss: str | None, do: Perform) -> Any:
    outcome = await do()
    if loss is None or not isinstance(outcome, CodeResult):
        return outcome
    told = replace(outcome, output=_LOSS.format(loss) + outcome.output)
    if isinstance(told, SessionResult):
        told.state_lost = True
    return told
