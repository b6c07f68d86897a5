"""Resumes a run: what it has done is answered from its journal, the rest is performed and recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from autogen_core.code_executor import CodeResult

from codeact_team.agents.codeact.attempts import Attempt, Fork, Promotion
from codeact_team.core.component_effects import CodeEffect, CodeRun
from codeact_team.core.effects import Effect, Perform, emit
from codeact_team.core.execution import SessionResult
from codeact_team.core.executor_interface import ChangedFile, StreamingCodeExecutor
from codeact_team.core.places import place_of
from codeact_team.core.process_effects import ProcessEffect
from codeact_team.errors import JournalError, RecordedError
from codeact_team.journal.answers import NOT_ASKED, RecordedAnswers, is_contained
from codeact_team.journal.chat_input import ChatInput
from codeact_team.journal.effect_records import EffectRecord, EffectState, ForkKey
from codeact_team.journal.history import History
from codeact_team.journal.program_sandboxes import ProgramSandboxes
from codeact_team.journal.recorder import Recorder
from codeact_team.journal.requests import Request
from codeact_team.journal.restoration import END, Restoration
from codeact_team.tools.approvals import decided

_LOSS = (
    "The interpreter of the earlier blocks was lost: the run was interrupted, and its code was not run again, as {}. Their "
    "variables, imports and functions are gone; this block runs in a fresh one.\n"
)
_OTHERWISE = (
    "the run cannot go on: {} acts differently from before, and might repeat what it has done. If a prompt or a model was "
    "changed by -s, begin a new run"
)


class Resumption(RecordedAnswers):
    """Answers a run from its history, and performs what it had not done.

    Attempts of which one was chosen are answered from the history alone: the blocks of the chosen one belong to its session by
    then. Otherwise, and where the work was over with the choice, so that higher limits may let it continue, their forks are
    made again, and the code of each attempt runs again in its own.

    Args:
        history: The history of the run.
        recorder: Records what is new.
        stop: Stops the work on an input of a chat, as a person has done.
    """

    def __init__(self, history: History, recorder: Recorder, stop: Callable[[], object]) -> None:
        super().__init__(history, recorder.redactor)
        self._recorder = recorder
        self._restoration = Restoration(history, recorder)
        self._sandboxes = ProgramSandboxes(self._restoration)
        self._stop = stop
        self._input: int | None = None
        """The last input of a chat that was answered."""
        self._reached = 0
        """The number of the last effect that was answered."""
        self._forks: dict[Fork, str | None] = {}
        """The forks that were made again, or are new; each with the reason if it lacks the interpreter's state."""
        self._losses: dict[ForkKey, str] = {}
        """Losses of the state of sessions, and of attempts' forks, that no block has reported yet."""
        self._attempts: dict[tuple[Fork, int], int] = {}
        """The numbers of the effects of attempts, by their forks and their numbers from 1."""
        self._over: set[int] = set()
        """The numbers of attempts that are answered from the history alone."""
        self._unknown: set[str] = set()
        """The keys of effects whose outcome is unknown: their callers may ask for them once more."""

    @property
    def repeats(self) -> bool:
        """Whether the work under way is that on an input of a chat, and had ended before."""
        return self._history.inputs.has_ended(self._input)

    def begin(self, executors: Sequence[StreamingCodeExecutor]) -> None:
        """Report to executors which files their code had made or changed when the run ended. Blocks."""
        self._restoration.report_changes(executors)

    async def finish(self, executors: Sequence[StreamingCodeExecutor]) -> Sequence[ChangedFile]:
        """Restore the files of temporary workspaces in which no code has run since the run was resumed.

        Returns:
            Files that code had made or changed and that cannot be restored.
        """
        return await self._restoration.restore_files(executors, self._reached)

    def _find(self, effect: Effect[Any], request: Request) -> EffectRecord | None:
        last: EffectRecord | None = None
        is_over = request.attempt in self._over
        while (found := self._history.effects.next(request)) is not None:
            # what failed last is tried again, where that can do no harm
            if (
                found.is_settled
                or found.was_stopped
                or (not is_over and (found.is_not_begun or _is_done_once(effect, found)))
            ):
                return found
            last = found
        return last if is_over else None

    async def _perform_unknown(self, effect: Effect[Any], request: Request, do: Perform) -> Any:
        if (again := request.call.repetition) is not None:
            again.strayed = again.strayed or request.in_words
            raise RecordedError(NOT_ASKED)
        if isinstance(effect, Attempt):
            return await self._attempt(effect, request, None, do)
        if isinstance(effect, ChatInput):
            # the work on the one before is over: the next one may be undone
            self._input = None
        if self._history.inputs.was_stopped(self._input):
            # it was stopped between two effects
            await self._stop_again()
            raise asyncio.CancelledError
        could_repeat = not request.is_of_block and effect.unknown() is not None
        is_otherwise = (
            could_repeat and request.key not in self._unknown and self._history.effects.has_more(request)
        )
        if request.attempt in self._over or is_otherwise:
            raise JournalError(_OTHERWISE.format(effect.source or "the program"))
        loss = await self._restore(effect, request, END)
        n = self._recorder.begin(effect, request)
        if isinstance(effect, Promotion):
            return await self._choose(n, effect, do)
        return await self._recorder.perform(n, effect, partial(_with_loss, loss, do))

    async def _answer(self, effect: Effect[Any], request: Request, record: EffectRecord, do: Perform) -> Any:
        if isinstance(effect, Attempt):
            return await self._attempt(effect, request, record, do)
        if isinstance(effect, CodeEffect) and effect.is_done_again and record.is_settled:
            return await self._do_again(effect, request, record, do)
        self._recorder.begin(effect, request, record)
        await self._pass(record.n)
        if record.kind == ChatInput.kind:
            self._input = record.n
        elif record.was_stopped:
            await self._stop_with(effect, record)
        is_over = request.attempt in self._over
        if record.state is EffectState.ANSWERED:
            return await self._answer_again(effect, request, record, do)
        runs_again = not is_over and isinstance(effect, CodeEffect) and await is_contained(effect.part)
        # contained code that failed last can run again, as if the run had been killed just then
        if record.state is EffectState.FAILED and (record.went_on or not runs_again):
            error = self._error(record)
            await self._recorder.fail(effect, error, again=record)
            raise error
        if is_over:
            cancelled = asyncio.CancelledError()
            await self._recorder.fail(effect, cancelled, is_cancelled=True, again=record)
            raise cancelled
        if record.is_not_begun:
            with decided() if self._history.is_decided(record) else nullcontext():
                return await self._recorder.perform(record.n, effect, do)
        if runs_again:
            loss = await self._restore(effect, request, record.n)
            return await self._recorder.perform(record.n, effect, partial(_with_loss, loss, do))
        outcome = effect.unknown()
        self._unknown.add(request.key)
        await self._recorder.settle(effect, outcome)
        return outcome

    async def _stop_with(self, effect: Effect[Any], record: EffectRecord) -> None:
        """Stop the work in an effect in which a person has stopped it."""
        await self._stop_again()
        if record.state is not EffectState.ANSWERED:
            cancelled = asyncio.CancelledError()
            await self._recorder.fail(effect, cancelled, is_cancelled=True, again=record)
            raise cancelled

    async def _stop_again(self) -> None:
        """Stop the work, where a person has stopped it, and wait until the agents know."""
        self._stop()
        await self._recorder.until_stopping()

    async def _answer_again(
        self, effect: Effect[Any], request: Request, record: EffectRecord, do: Perform
    ) -> Any:
        if record.is_given:
            # its caller may act on it from now on
            self._recorder.write(used=record.n)
        outcome = self._outcome(effect, record)
        if isinstance(effect, CodeRun):
            # where it runs again, its calls are not told: they belong here
            for call in self._history.calls_in(record.n, effect.span):
                emit(call)
            self._restoration.answered(record.n, effect.part)
        if isinstance(effect, Promotion) and effect.fork in self._forks:
            return await self._choose(record.n, effect, do)
        if isinstance(effect, Fork) and outcome is None and await self._is_made_again(effect, record):
            await self._restore(effect, request, record.n)
            if (refusal := await do()) is not None:
                raise JournalError(
                    f"the run cannot go on: its session cannot be forked as it was before: {refusal}"
                )
        else:
            await effect.skip()
        if isinstance(effect, ProcessEffect):
            await self._restoration.done_again(effect.part, record.n)
        await self._recorder.settle(effect, outcome, again=record)
        return outcome

    async def _do_again(
        self, effect: CodeEffect[Any], request: Request, record: EffectRecord, do: Perform
    ) -> Any:
        """Do again what a program has done with its sandbox."""
        self._recorder.begin(effect, request, record)
        executor = await self._sandboxes.begin(effect, record.n)
        try:
            if isinstance(effect, CodeRun):
                if record.state is EffectState.FAILED:
                    raise self._error(record)
                outcome = self._outcome(effect, record)
                await self._sandboxes.repeat(executor, record.n, outcome, do)
            else:
                outcome = await do()
        except Exception as error:
            await self._pass(record.n)
            await self._recorder.fail(effect, error, again=record)
            raise
        await self._pass(record.n)
        await self._sandboxes.ended(effect, record.n)
        await self._recorder.settle(effect, outcome, again=record)
        return outcome

    async def _pass(self, n: int) -> None:
        await self._order.turn(n)
        self._reached = max(self._reached, n)

    async def _is_made_again(self, fork: Fork, record: EffectRecord) -> bool:
        if not self._history.is_chosen(record):
            return True
        return self._history.may_continue(record) and await is_contained(fork.part)

    async def _choose(self, n: int, promotion: Promotion, do: Perform) -> Any:
        """Choose an attempt whose fork was made again. The next block of the session reports a loss that the attempt has not reported."""
        place = place_of(promotion.part)
        attempt = self._attempts.get((promotion.fork, promotion.attempt))
        if attempt is not None and (loss := self._losses.pop((place, attempt), None)) is not None:
            self._losses[place, None] = loss
        return await self._recorder.perform(n, promotion, do)

    async def _restore(self, effect: Effect[Any], request: Request, n: int) -> str | None:
        """Restore what code has left in the executor of an effect; returns why that cannot be done, if so."""
        if isinstance(effect, CodeEffect) and effect.is_done_again:
            return await self._sandboxes.go_on(effect, n)
        if isinstance(effect, CodeRun) and effect.is_apart:
            return self._losses.pop((place_of(effect.part), request.attempt), None)
        loss = await self._restoration.restore(effect, n)
        if isinstance(effect, CodeRun | Fork):
            loss = self._losses.pop((place_of(effect.part), None), None) or loss
        if isinstance(effect, Fork):
            self._forks[effect] = loss
        return loss

    async def _attempt(
        self, attempt: Attempt, request: Request, record: EffectRecord | None, do: Perform
    ) -> Any:
        is_over = attempt.fork not in self._forks
        if record is None and is_over:
            raise JournalError(_OTHERWISE.format(attempt.source))
        n = self._recorder.begin(attempt, request, record)
        self._restoration.answered(n, attempt.part)
        self._attempts[attempt.fork, attempt.number] = n
        if is_over:
            self._over.add(n)
        elif (
            loss := self._forks[attempt.fork] or await self._restoration.restore_fork(attempt, n)
        ) is not None:
            self._losses[place_of(attempt.part), n] = loss
        if record is None or record.state is not EffectState.ANSWERED:
            return await self._recorder.perform(n, attempt, do)
        outcome = await do()
        await self._pass(n)
        await self._recorder.settle(attempt, outcome, again=record)
        return outcome


def _is_done_once(effect: Effect[Any], record: EffectRecord) -> bool:
    """Whether an effect that has not ended, or has failed last, is not performed again."""
    return effect.unknown() is not None and not (effect.fails_undone and record.state is EffectState.FAILED)


async def _with_loss(loss: str | None, do: Perform) -> Any:
    """Perform a block whose output begins with the loss of the interpreter's state, if it is lost."""
    outcome = await do()
    if loss is None or not isinstance(outcome, CodeResult):
        return outcome
    result = replace(outcome, output=_LOSS.format(loss) + outcome.output)
    if isinstance(result, SessionResult):
        result.state_lost = True
    return result
