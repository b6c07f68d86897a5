"""Several attempts at a task side by side, each in a branch of the session, of which the agent goes on with the best.

An attempt is a whole run of the agent: its model begins with the conversation as it is, and its code with the variables and the
files. Each has the agent's limits for itself. When all have come to their end, the model is asked which answer is the best, as
in a reflection, unless there is only one, or all are the same. The branch of that attempt takes the place of the session, its
conversation that of the agent, and what it has said is yielded. The other branches end, and of the other attempts only the cost
is left. Until then what cannot be undone is not done: only tools that may be called twice are called.

What is asked in an attempt depends on nothing that happens in another one, so that a journal can answer each by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

from autogen_agentchat.base import Response
from autogen_core.model_context import ChatCompletionContext
from autogen_core.models import UserMessage

from codeact_team.agents.block_calls import repeating
from codeact_team.agents.chat_messages import visible_to
from codeact_team.agents.codeact.attempt_effects import Attempt, Fork, Promotion
from codeact_team.agents.codeact.choice import Account, choose
from codeact_team.agents.codeact.codeact_loop import CodeActLoop
from codeact_team.agents.codeact.codeact_run import CodeActRun
from codeact_team.aio import is_being_cancelled, to_the_end, until_cancelled
from codeact_team.effects import perform
from codeact_team.errors import ForkError, SandboxError
from codeact_team.execution_records import Ending
from codeact_team.executor_interface import SessionCodeExecutor
from codeact_team.parsing import make_inert

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
            return await perform(fork, self._fork, self._run.door)
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
            sight=self._loop.sight.copy(),
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
        await perform(attempt, work, self._run.door)

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
        task = self._loop.sight.show(visible_to(model, self._run.task))
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
        loss = await perform(promotion, promote, self._run.door)
        for message in line.run.said:
            await self._loop.context.add_message(message)
        if loss is not None:
            told = UserMessage(content=_LOST.format(loss), source=self._run.source)
            await self._loop.context.add_message(told)
        self._loop.sight.go_on_from(line.loop.sight)
        for message in line.run.inner_messages:
            await self._run.emit(message)

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
