"""Parallel attempts at a task in forks of one interpreter, and the choice between them.

An attempt is a whole run of the agent, with the conversation, variables and files at its begin, and its own limits. When all
have ended, the model chooses the best answer, unless only one counts or all are the same. The fork of that attempt replaces
the session, its conversation becomes the agent's, and its messages are yielded. The other forks end; of the other attempts
only the cost remains. Before the choice, only repeatable tools are called.

No request of an attempt depends on another attempt, so that a journal can answer each by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated

from autogen_agentchat.base import Response
from autogen_core.code_executor import CodeExecutor
from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import SystemMessage, UserMessage
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, JsonValue, TypeAdapter, create_model

from codeact_team.agents.block_calls import repeating
from codeact_team.agents.codeact.loop import CodeActLoop
from codeact_team.agents.codeact.run import CodeActRun
from codeact_team.agents.messages import visible_to
from codeact_team.agents.observations import Ending, shorten
from codeact_team.core.aio import is_being_cancelled, to_the_end, until_cancelled
from codeact_team.core.component_effects import CodeEffect, Run
from codeact_team.core.effects import Begin, Effect, End, perform
from codeact_team.core.events import (
    AttemptBegan,
    AttemptEnded,
    ForkBegan,
    ForkEnded,
    PromotionBegan,
    PromotionEnded,
)
from codeact_team.core.execution import Artifact
from codeact_team.core.executor_interface import SessionCodeExecutor
from codeact_team.errors import ForkError, SandboxError
from codeact_team.models.structured import ask
from codeact_team.models.verdicts import REFLECTION_SYSTEM_MESSAGE
from codeact_team.text.quoting import as_data, make_inert


class Fork(CodeEffect[str | None]):
    """A session is forked for attempts; the outcome says why it cannot be, if so."""

    kind = "fork"
    form = TypeAdapter[str | None](str | None)

    def __init__(self, executor: CodeExecutor, run: Run, source: str, attempts: int) -> None:
        super().__init__(executor, run)
        self.executor = executor
        self.source = source
        self.attempts = attempts

    def request(self) -> JsonValue:
        return {"forks": self.attempts}

    @classmethod
    def began(cls, begin: Begin) -> ForkBegan:
        return ForkBegan(forks=begin.request["forks"])

    @classmethod
    def ended(cls, end: End) -> ForkEnded:
        return ForkEnded(forks=end.request["forks"], refusal=end.outcome or end.error)


class Attempt(Effect[str]):
    """An agent makes an attempt in a fork of its session; the outcome is its ending.

    Args:
        fork: The fork of the session.
        number: The number of the attempt, from 1.
        executor: Its executor; ``None`` if none was made, as a journal answers everything in it.
        run: Runs blocks in its executor, as of :class:`CodeEffect`.

    Attributes:
        part: The executor of the session.
    """

    kind = "attempt"
    form = TypeAdapter(str)

    def __init__(self, fork: Fork, number: int, executor: SessionCodeExecutor | None, run: Run) -> None:
        self.part = fork.part
        self.source = fork.source
        self.fork = fork
        self.number = number
        self.executor = executor
        self.run = run

    def request(self) -> JsonValue:
        return {"attempt": self.number, "of": self.fork.attempts}

    @classmethod
    def began(cls, begin: Begin) -> AttemptBegan:
        return AttemptBegan(attempt=begin.request["attempt"], attempts=begin.request["of"])

    @classmethod
    def ended(cls, end: End) -> AttemptEnded:
        event = AttemptEnded(attempt=end.request["attempt"], attempts=end.request["of"], ending=end.outcome)
        if end.failure is not None and end.failure.is_cancellation:
            event.ending = Ending.CANCELLED
        elif end.failure is not None:
            event.error = str(end.failure)
        return event


class Promotion(CodeEffect[str | None]):
    """The fork of an attempt replaces its session; the outcome says why it cannot, if so.

    Args:
        fork: The fork of the session.
        attempt: The number of the attempt.
        shown: The artifacts of the attempt.
    """

    kind = "promotion"
    form = TypeAdapter[str | None](str | None)

    def __init__(self, fork: Fork, attempt: int, shown: Sequence[Artifact]) -> None:
        super().__init__(fork.executor, fork.run)
        self.source = fork.source
        self.fork = fork
        self.attempt = attempt
        self.shown = shown

    def request(self) -> JsonValue:
        return {"attempt": self.attempt}

    @classmethod
    def began(cls, begin: Begin) -> PromotionBegan:
        return PromotionBegan(attempt=begin.request["attempt"])

    @classmethod
    def ended(cls, end: End) -> PromotionEnded:
        return PromotionEnded(attempt=end.request["attempt"], loss=end.outcome or end.error)


_CHOOSE = (
    "The task above was worked on {count} times, each time from the beginning and without knowledge of the others. This is "
    "what each has come to; its code and output are from its last step.\n\n{accounts}\n\n"
    "Choose the one whose answer is to be given. What the results show counts, not how sure an answer sounds; that several "
    "answers agree speaks for them. Answer with two fields:\n"
    "- 'reason': why it is the best, in one or two sentences.\n"
    "- 'answer': its number, from 1 to {count}."
)
_NUMBER = "The number of the answer that is to be given."
_MAX_CHARS = 60_000
"""Characters of all accounts that the model reads together."""
_ANSWERS = (Ending.ANSWERED, Ending.HANDED_OFF)
_BEGIN = "{} attempts at the task are made side by side."
_REFUSED = "One attempt is made instead of {}, as the session cannot be copied: {}"
_CHOSEN = "Attempt {} of {} is chosen: {}."
_LOST = (
    "The variables, functions and files of the code above are lost: {}. The interpreter and the workspace are as they were "
    "before the task."
)

_LOST_ANSWER = "what the code of attempt {} has made is lost: {}. Its answer would be given without that"


class Choice(BaseModel):
    """The choice of one among several answers."""

    # a default would be part of the JSON schema, which strict structured output does not allow
    reason: Annotated[str, BeforeValidator(lambda value: "" if value is None else value)] = Field(
        default_factory=str, description="Why this answer is the best."
    )
    answer: int = Field(description=_NUMBER)


@cache
def _choice_of(count: int) -> type[Choice]:
    """The choice among so many, which has no other number."""

    def is_there(number: int) -> int:
        if not 1 <= number <= count:
            raise ValueError(f"there is no answer {number}, only 1 to {count}")
        return number

    # strict structured output has no bounds of numbers
    numbered = Annotated[int, AfterValidator(is_there), Field(description=_NUMBER)]
    return create_model("Choice", __base__=Choice, __doc__=Choice.__doc__, answer=(numbered, ...))


@dataclass(frozen=True)
class _Candidate:
    """An attempt: its number from 1, its executor if one was made, its loop with its own conversation, and its run."""

    number: int
    executor: SessionCodeExecutor | None
    loop: CodeActLoop
    run: CodeActRun

    @property
    def answer(self) -> tuple[str, str | None]:
        """The text of its answer or handoff, and the target of the handoff."""
        handoff = self.run.handoff
        return (self.run.final_text, None) if handoff is None else (handoff.content, handoff.target)

    def account(self, number: int, limit: int) -> str:
        """The attempt as answer ``number`` for the model that chooses, in about ``limit`` characters."""

        def quoted(text: str, part: int) -> str:
            return as_data(make_inert(shorten(text, limit // part)))

        text, target = self.answer
        answer = text if target is None else f"The work is handed to {target}. {text}"
        steps = self.run.budget.steps
        parts = [f"Answer {number}, after {steps} step{'' if steps == 1 else 's'}:", quoted(answer, 2)]
        if self.run.executed:
            code = "\n\n".join(block.code for block in self.run.executed[-1])
            parts += ["Its last code:", quoted(code, 4)]
            parts += ["The output of that:", quoted(self.run.result.output, 4)]
        if self.run.verdict is not None:
            parts += ["A review of it said:", quoted(self.run.verdict.to_text(), 8)]
        return "\n".join(parts)


class Attempts:
    """Makes several attempts at a task.

    Args:
        loop: The agent's loop.
        run: The agent's turn, with the task.
        number: How many attempts are made.
    """

    def __init__(self, loop: CodeActLoop, run: CodeActRun, number: int) -> None:
        self._loop = loop
        self._run = run
        self._number = number
        self._forks: Sequence[SessionCodeExecutor] = ()
        """The executors of the attempts; empty if a journal has answered the fork, and so answers what follows."""

    async def make(self) -> Response:
        """Make the attempts, continue with the best, and return its response."""
        loop, run = self._loop, self._run
        fork = Fork(loop.executor, self._again(loop.executor), run.source, self._number)
        try:
            refusal = await self._fork(fork)
            if run.cancelled or refusal is not None:
                if not run.cancelled:
                    await run.think(_REFUSED.format(self._number, refusal))
                # where it is cancelled, this ends at once
                await loop.work(run)
                return loop.respond(run)
            await run.think(_BEGIN.format(self._number))
            candidates = [self._candidate(number) for number in range(1, self._number + 1)]
            await self._work(fork, candidates)
            best = candidates[0]
            if not run.cancelled:
                best = await self._choose(candidates)
                await self._promote(fork, best)
            # the response of that attempt, with the cost of all
            for other in (run, *(one.run for one in candidates if one is not best)):
                if other.usage is not None:
                    best.run.count(other.usage)
            best.run.inner_messages = [*run.inner_messages, *best.run.inner_messages]
            return best.loop.respond(best.run)
        finally:
            # the promoted one has replaced the session
            await to_the_end(asyncio.gather(*(executor.stop() for executor in self._forks)))

    async def _fork(self, fork: Fork) -> str | None:
        async def work() -> str | None:
            await until_cancelled(self._loop.executor.start(), self._run.cancellation_token)
            try:
                self._forks = await self._loop.executor.fork(self._number)
            except ForkError as error:
                return str(error)
            return None

        try:
            return await perform(fork, work, self._run.dispatcher)
        except asyncio.CancelledError:
            if not self._run.cancelled or is_being_cancelled():
                raise
            return None

    def _candidate(self, number: int) -> _Candidate:
        executor = self._forks[number - 1] if self._forks else None
        loop = replace(
            self._loop,
            executor=executor or self._loop.executor,
            fork_of=self._loop.executor,
            context=_copied(self._loop.context),
            # its list of pictures is replaced, never changed
            vision=copy(self._loop.vision),
        )
        return _Candidate(number, executor, loop, self._run.attempt())

    async def _work(self, fork: Fork, candidates: Sequence[_Candidate]) -> None:
        """Make the attempts in parallel; if one raises, the others are cancelled."""

        async def attempt(one: _Candidate) -> None:
            async def work() -> str:
                await one.loop.work(one.run)
                return one.run.ending or Ending.NO_ANSWER

            effect = Attempt(fork, one.number, one.executor, self._again(one.loop.executor))
            await perform(effect, work, self._run.dispatcher)

        tasks = [asyncio.ensure_future(attempt(one)) for one in candidates]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await to_the_end(asyncio.wait(tasks))

    async def _choose(self, made: Sequence[_Candidate]) -> _Candidate:
        """The best attempt; the model is asked if several different answers count."""
        answered = [one for one in made if one.run.ending in _ANSWERS]
        accepted = [one for one in answered if one.run.verdict is None or one.run.verdict.accepted]
        with_words = [one for one in made if one.run.ending is not None and one.run.ending.has_answer]
        candidates = accepted or answered or with_words[:1] or made[:1]
        best = candidates[0]
        if len(candidates) == 1:
            is_answer = best.run.ending in _ANSWERS
            reason = "no other has an answer that counts" if is_answer else "none has come to an answer"
        elif len({one.answer for one in candidates}) == 1:
            reason = "the answers are the same"
        else:
            best, reason = await self._ask_for_choice(candidates)
        await self._run.think(_CHOSEN.format(best.number, len(made), reason))
        return best

    async def _ask_for_choice(self, candidates: Sequence[_Candidate]) -> tuple[_Candidate, str]:
        """The model's choice and its reason; the first if its choice cannot be read."""
        model, count = self._loop.model_client, len(candidates)
        task = self._loop.vision.show(visible_to(model, self._run.task))
        accounts = "\n\n".join(
            one.account(number, _MAX_CHARS // count) for number, one in enumerate(candidates, 1)
        )
        question = UserMessage(content=_CHOOSE.format(count=count, accounts=accounts), source="user")
        messages = [SystemMessage(content=REFLECTION_SYSTEM_MESSAGE), *task, question]
        read = await ask(model, messages, _choice_of(count), cancellation_token=self._run.cancellation_token)
        choice = read.or_else(Choice(answer=1, reason=f"The choice could not be read. {read.problem}"))
        self._run.count(choice.usage)
        await self._run.think(choice.thought)
        number = choice.value.answer
        reason = make_inert(choice.value.reason).strip().rstrip(".")
        return candidates[number - 1], reason or f"it has answer {number} of {count}, the best"

    async def _promote(self, fork: Fork, best: _Candidate) -> None:
        """Continue from the end of an attempt: with its variables, files and conversation."""

        async def work() -> str | None:
            assert best.executor is not None, "a journal that has answered the fork answers this, too"
            try:
                await self._loop.executor.promote(best.executor, user=self._run.tools.user)
            except SandboxError as error:
                if best.run.ending in _ANSWERS:
                    # as the outcome it would stand for good, under an answer that counts
                    raise SandboxError(_LOST_ANSWER.format(best.number, error)) from error
                return str(error)
            return None

        loss = await perform(Promotion(fork, best.number, best.run.shown), work, self._run.dispatcher)
        for message in best.run.said:
            await self._loop.context.add_message(message)
        if loss is not None:
            lost = UserMessage(content=_LOST.format(loss), source=self._run.source)
            await self._loop.context.add_message(lost)
        self._loop.vision.take_over(best.loop.vision)
        for message in best.run.inner_messages:
            await self._run.yield_item(message)

    def _again(self, executor: SessionCodeExecutor) -> Run:
        run = self._run
        rolls_back = self._loop.settings.rollback_on_error
        return repeating(executor, run.tools, run.cancellation_token, rolls_back=rolls_back)


def _copied(context: ChatCompletionContext) -> ChatCompletionContext:
    """A copy of a context whose messages change independently."""
    other = copy(context)
    for name, value in vars(context).items():
        if isinstance(value, list | dict | set):
            setattr(other, name, copy(value))  # pyright: ignore[reportUnknownArgumentType]
    return other
