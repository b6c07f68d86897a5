"""What an agent asks that makes several attempts side by side: branches of its session, the attempts, and to go on with one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from autogen_core.code_executor import CodeExecutor
from pydantic import JsonValue, TypeAdapter

from codeact_team.code_effects import CodeEffect, Run
from codeact_team.effects import Effect, error_text
from codeact_team.events import AttemptBegan, AttemptEnded, BranchPromoted, SessionForked
from codeact_team.execution import Artifact
from codeact_team.execution_records import Ending
from codeact_team.executor_interface import SessionCodeExecutor


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

    def began(self, span: int) -> SessionForked:
        return SessionForked(span=span, agent=self.source, branches=self._branches)

    def ended(self, span: int, outcome: str | None, error: BaseException | None) -> SessionForked:
        refusal = outcome or error_text(error)
        return SessionForked(
            span=span, agent=self.source, branches=self._branches, is_over=True, refusal=refusal
        )


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

    def began(self, span: int) -> BranchPromoted:
        return BranchPromoted(span=span, agent=self.source, attempt=self.attempt)

    def ended(self, span: int, outcome: str | None, error: BaseException | None) -> BranchPromoted:
        loss = outcome or error_text(error)
        return BranchPromoted(span=span, agent=self.source, attempt=self.attempt, is_over=True, loss=loss)
