"""Attempts side by side, in forks of one interpreter, and the choice between them.

An attempt is a whole run of the agent: its model begins with the conversation as it is, and its code with the variables and
the files. Each has the agent's limits for itself. When all have come to their end, the model is asked which answer is the
best, as in a reflection, unless there is only one, or all are the same. The branch of that attempt takes the place of the
session, its conversation that of the agent, and what it has said is yielded. The other branches end, and of the other
attempts only the cost is left. Until then what cannot be undone is not done: only tools that may be called twice are called.

What is asked in an attempt depends on nothing that happens in another one, so that a journal can answer each by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated, Any

from autogen_agentchat.base import Response
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeExecutor
from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import ChatCompletionClient, LLMMessage, SystemMessage, UserMessage
from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, JsonValue, TypeAdapter, create_model

from codeact_team.agents.block_calls import repeating
from codeact_team.agents.codeact.loop import CodeActLoop
from codeact_team.agents.codeact.run import CodeActRun
from codeact_team.agents.messages import visible_to
from codeact_team.agents.observations import Ending, shorten
from codeact_team.core.aio import is_being_cancelled, to_the_end, until_cancelled
from codeact_team.core.component_effects import CodeEffect, Run
from codeact_team.core.effects import Effect, error_text, perform
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
from codeact_team.core.quoting import as_data, make_inert
from codeact_team.errors import ForkError, SandboxError
from codeact_team.models.structured import ModelAnswer, ask
from codeact_team.models.verdicts import REFLECTION_SYSTEM_MESSAGE


class Fork(CodeEffect[str | None]):
    """A session gets branches for attempts; the outcome says why it cannot, if so.

    Args:
        executor: Of the session.
        run: As of a :class:`CodeEffect`.
        source: The agent.
        branches: How many.
    """

    kind = "fork"
    form = TypeAdapter[str | None](str | None)

    def __init__(self, executor: CodeExecutor, run: Run, source: str, branches: int) -> None:
        super().__init__(executor, run)
        self.executor = executor
        self.source = source
        self._branches = branches

    def request(self) -> JsonValue:
        return {"branches": self._branches}

    def began(self, span: int) -> ForkBegan:
        return ForkBegan(span=span, agent=self.source, branches=self._branches)

    def ended(self, span: int, outcome: str | None, error: BaseException | None) -> ForkEnded:
        refusal = outcome or error_text(error)
        return ForkEnded(span=span, agent=self.source, branches=self._branches, refusal=refusal)


class Attempt(Effect[str]):
    """An agent makes an attempt in a branch; the outcome is how that came to its end.

    Whatever is asked within it is asked by this attempt.

    Args:
        fork: What its branch comes from.
        source: The agent.
        number: Its number, from 1.
        attempts: How many there are.
        branch: The executor of its branch; ``None`` where that was not made, as the journal knows all that comes.
        run: Runs blocks in the branch, as :class:`CodeEffect` has it.

    Attributes:
        part: The executor of the session.
    """

    kind = "attempt"
    form = TypeAdapter(str)

    def __init__(
        self,
        fork: Fork,
        source: str,
        number: int,
        attempts: int,
        branch: SessionCodeExecutor | None,
        run: Run,
    ) -> None:
        self.part = fork.part
        self.source = source
        self.fork = fork
        self.branch = branch
        self.run = run
        self.number = number
        self._attempts = attempts

    def request(self) -> JsonValue:
        return {"attempt": self.number, "of": self._attempts}

    def began(self, span: int) -> AttemptBegan:
        return AttemptBegan(span=span, agent=self.source, attempt=self.number, attempts=self._attempts)

    def ended(self, span: int, outcome: str | None, error: BaseException | None) -> AttemptEnded:
        if isinstance(error, asyncio.CancelledError):
            outcome, error = Ending.CANCELLED, None
        return AttemptEnded(
            span=span,
            agent=self.source,
            attempt=self.number,
            attempts=self._attempts,
            ending=outcome,
            error=error_text(error),
        )


class Promotion(CodeEffect[str | None]):
    """A branch takes the place of its session; the outcome says why it cannot, if so.

    Args:
        fork: What the branch comes from.
        attempt: The number of the attempt that was made in it.
        shown: What its code has made beside text.
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

    def began(self, span: int) -> PromotionBegan:
        return PromotionBegan(span=span, agent=self.source, attempt=self.attempt)

    def ended(self, span: int, outcome: str | None, error: BaseException | None) -> PromotionEnded:
        loss = outcome or error_text(error)
        return PromotionEnded(span=span, agent=self.source, attempt=self.attempt, loss=loss)


_CHOOSE = (
    "The task above was worked on {count} times, each time from the beginning and without knowledge of the others. This is "
    "what each has come to; code that was run and its output are those of its last step.\n\n{accounts}\n\n"
    "Choose the one whose answer is to be given. What the results show counts, not how sure an answer sounds; that several "
    "answers agree speaks for them. Answer with two fields:\n"
    "- 'reason': why it is the best, in one or two sentences.\n"
    "- 'answer': its number, from 1 to {count}."
)
_NUMBER = "The number of the answer that is to be given."
_MAX_CHARS = 60_000
"""How much of all the accounts the model reads together."""


def _as_text(value: object) -> object:
    return "" if value is None else value


class Choice(BaseModel):
    """The choice of one among several answers."""

    # a default would be part of the JSON schema, which strict structured output does not allow
    reason: Annotated[str, BeforeValidator(_as_text)] = Field(
        default_factory=str, description="Why this answer is the best."
    )
    answer: int = Field(description=_NUMBER)


@dataclass(frozen=True)
class Account:
    """What an attempt has come to.

    Attributes:
        answer: Its answer.
        steps: How often its model has written.
        code: What it has run last; empty if nothing.
        output: What came of that.
        verdict: What a reflection on the answer says; empty if there was none.
    """

    answer: str
    steps: int
    code: str = ""
    output: str = ""
    verdict: str = ""

    def to_text(self, number: int, limit: int) -> str:
        """The account as a model reads it, in about ``limit`` characters."""
        parts = [f"Answer {number}, after {self.steps} step{'' if self.steps == 1 else 's'}:"]
        parts.append(as_data(make_inert(shorten(self.answer, limit // 2))))
        if self.code:
            parts += ["Its last code:", as_data(make_inert(shorten(self.code, limit // 4)))]
            parts += ["The output of that:", as_data(make_inert(shorten(self.output, limit // 4)))]
        if self.verdict:
            parts += ["A review of it said:", as_data(make_inert(shorten(self.verdict, limit // 8)))]
        return "\n".join(parts)


async def choose(
    client: ChatCompletionClient,
    task: Sequence[LLMMessage],
    accounts: Sequence[Account],
    cancellation_token: CancellationToken,
) -> ModelAnswer[Choice]:
    """Ask the model which of several answers is the best.

    Args:
        client: The model.
        task: What was to be done, as the model can read it.
        accounts: What the attempts have come to, two or more.
        cancellation_token: Stops the call.

    Returns:
        The choice. Where the model did not give one that can be read, it is the first answer.

    Raises:
        Exception: As :func:`codeact_team.models.structured.ask`.
    """
    limit = _MAX_CHARS // len(accounts)
    shown = "\n\n".join(account.to_text(number, limit) for number, account in enumerate(accounts, 1))
    question = UserMessage(content=_CHOOSE.format(count=len(accounts), accounts=shown), source="user")
    messages = [SystemMessage(content=REFLECTION_SYSTEM_MESSAGE), *task, question]
    read = await ask(client, messages, _choice_of(len(accounts)), cancellation_token=cancellation_token)
    return read.or_else(Choice(answer=1, reason=f"The choice could not be read. {read.problem}"))


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


_ANSWERS = (Ending.ANSWERED, Ending.HANDED_OFF)
_BEGIN = "{} attempts at the task are made side by side."
_REFUSED = "One attempt is made instead of {}, as the session cannot be copied: {}"
_CHOSEN = "Attempt {} of {} is chosen: {}."
_LOST = (
    "The variables, functions and files of the code above are lost: {}. The interpreter and the workspace are as they were "
    "before the task."
)


@dataclass(frozen=True)
class _Line:
    """An attempt.

    Attributes:
        number: From 1.
        loop: How it is made, with a conversation of its own.
        run: What it has come to.
    """

    number: int
    loop: CodeActLoop
    run: CodeActRun

    @property
    def answer(self) -> tuple[str, str | None]:
        """What it has come to: in words, and whom it hands the work to."""
        handoff = self.run.handoff
        return (self.run.final_text, None) if handoff is None else (handoff.content, handoff.target)

    def account(self) -> Account:
        """What is told of it to whoever chooses."""
        text, target = self.answer
        return Account(
            answer=text if target is None else f"The work is handed to {target}. {text}",
            steps=self.run.budget.steps,
            code="\n\n".join(block.code for block in self.run.executed[-1]) if self.run.executed else "",
            output=self.run.result.output if self.run.executed else "",
            verdict="" if self.run.verdict is None else self.run.verdict.to_text(),
        )


class Attempts:
    """Makes several attempts at a task.

    Args:
        loop: How the agent works.
        run: The agent's turn, with the task.
        number: How many attempts are made.
    """

    def __init__(self, loop: CodeActLoop, run: CodeActRun, number: int) -> None:
        self._loop = loop
        self._run = run
        self._number = number
        self._branches: Sequence[SessionCodeExecutor] = ()

    async def make(self) -> Response:
        """Make the attempts, go on with the best, and respond as that does."""
        fork = Fork(self._loop.executor, self._again(self._loop.executor), self._run.source, self._number)
        try:
            refusal = await self._make_branches(fork)
            if self._run.cancelled:
                # it ends at once
                return await self._loop.run(self._run)
            if refusal is not None:
                await self._run.think(_REFUSED.format(self._number, refusal))
                return await self._loop.run(self._run)
            await self._run.think(_BEGIN.format(self._number))
            lines = [self._line(number) for number in range(1, self._number + 1)]
            await _side_by_side([self._attempt(fork, line) for line in lines])
            if self._run.cancelled:
                return self._respond(lines[0], lines)
            best = await self._choose(lines)
            await self._promote(fork, best)
            return self._respond(best, lines)
        finally:
            await to_the_end(self._end_branches())

    async def _make_branches(self, fork: Fork) -> str | None:
        try:
            return await perform(fork, self._fork, self._run.dispatcher)
        except asyncio.CancelledError:
            if not self._run.cancelled or is_being_cancelled():
                raise
            return None

    async def _fork(self) -> str | None:
        await until_cancelled(self._loop.executor.start(), self._run.cancellation_token)
        try:
            self._branches = await self._loop.executor.fork(self._number)
        except ForkError as error:
            return str(error)
        return None

    def _branch(self, number: int) -> SessionCodeExecutor | None:
        """The executor of an attempt; ``None`` where a journal has answered, and so answers all that comes of it."""
        return self._branches[number - 1] if self._branches else None

    def _line(self, number: int) -> _Line:
        loop = replace(
            self._loop,
            executor=self._branch(number) or self._loop.executor,
            branch_of=self._loop.executor,
            context=_copied(self._loop.context),
            vision=self._loop.vision.copy(),
        )
        return _Line(number, loop, self._run.attempt())

    async def _attempt(self, fork: Fork, line: _Line) -> None:
        async def work() -> str:
            await line.loop.work(line.run)
            return line.run.ending or Ending.NO_ANSWER

        attempt = Attempt(
            fork,
            self._run.source,
            line.number,
            self._number,
            self._branch(line.number),
            self._again(line.loop.executor),
        )
        await perform(attempt, work, self._run.dispatcher)

    async def _choose(self, lines: Sequence[_Line]) -> _Line:
        """The attempt to go on with, chosen by the model where there is a choice."""
        candidates = _candidates(lines)
        best, reason = candidates[0], ""
        if len(candidates) == 1:
            is_answer = best.run.ending in _ANSWERS
            reason = "no other has an answer that counts" if is_answer else "none has come to an answer"
        elif len({line.answer for line in candidates}) == 1:
            reason = "the answers are the same"
        else:
            best, reason = await self._ask_for_choice(candidates)
        await self._run.think(_CHOSEN.format(best.number, len(lines), reason))
        return best

    async def _ask_for_choice(self, candidates: Sequence[_Line]) -> tuple[_Line, str]:
        model = self._loop.model_client
        task = self._loop.vision.show(visible_to(model, self._run.task))
        accounts = [line.account() for line in candidates]
        choice = await choose(model, task, accounts, self._run.cancellation_token)
        self._run.calls.append(choice.usage)
        await self._run.think(choice.thought)
        number = choice.value.answer
        best, reason = candidates[number - 1], make_inert(choice.value.reason).strip().rstrip(".")
        return best, reason or f"it has answer {number} of {len(candidates)}, the best"

    async def _promote(self, fork: Fork, line: _Line) -> None:
        """Go on where an attempt has got to: with its variables and files, and with its conversation."""
        executor, branch = self._loop.executor, self._branch(line.number)

        async def promote() -> str | None:
            assert branch is not None, "what was not made is promoted already"
            try:
                await executor.promote(branch, user=self._run.tools.user)
            except SandboxError as error:
                return str(error)
            return None

        promotion = Promotion(fork, line.number, line.run.shown)
        loss = await perform(promotion, promote, self._run.dispatcher)
        for message in line.run.said:
            await self._loop.context.add_message(message)
        if loss is not None:
            told = UserMessage(content=_LOST.format(loss), source=self._run.source)
            await self._loop.context.add_message(told)
        self._loop.vision.take_over(line.loop.vision)
        for message in line.run.inner_messages:
            await self._run.yield_item(message)

    def _respond(self, line: _Line, lines: Sequence[_Line]) -> Response:
        """The response of an attempt, with what all of them have cost."""
        line.run.calls = [*(call for one in lines for call in one.run.calls), *self._run.calls]
        line.run.inner_messages = [*self._run.inner_messages, *line.run.inner_messages]
        return line.loop.respond(line.run)

    def _again(self, executor: SessionCodeExecutor) -> Any:
        return repeating(
            executor,
            self._run.tools,
            self._run.cancellation_token,
            rolls_back=self._loop.settings.rollback_on_error,
        )

    async def _end_branches(self) -> None:
        # that of the promoted one has taken the place of the session
        await asyncio.gather(*(branch.stop() for branch in self._branches))


def _candidates(lines: Sequence[_Line]) -> list[_Line]:
    """Those that may be gone on with: what a reflection accepts before other answers, and these before what else there is."""
    answered = [line for line in lines if line.run.ending in _ANSWERS]
    accepted = [line for line in answered if line.run.verdict is None or line.run.verdict.accepted]
    with_words = [line for line in lines if line.run.ending is not None and line.run.ending.has_answer]
    return accepted or answered or with_words[:1] or [*lines[:1]]


def _copied(context: ChatCompletionContext) -> ChatCompletionContext:
    """A context that remembers the same, and then goes its own way."""
    other = copy(context)
    for name, value in vars(context).items():
        if isinstance(value, list | dict | set):
            setattr(other, name, copy(value))  # pyright: ignore[reportUnknownArgumentType]
    return other


async def _side_by_side(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Await all; where one raises, the others are cancelled."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await to_the_end(asyncio.wait(tasks))
