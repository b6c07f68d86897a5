"""The results of tasks, and the events of a batch."""

# the name of a class says which of the types it has
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from signal import Signals
from typing import ClassVar, Literal

from pydantic import JsonValue, TypeAdapter

from codeact_team.core.effects import Event
from codeact_team.core.showing import few_words
from codeact_team.journal.result import RunEnding, reasons_in

Unchecked = Literal["checker failed"]
UNCHECKED: Unchecked = "checker failed"
"""The outcome of a task whose run is finished, and whose checker could not judge the answer."""


class Doing(StrEnum):
    """The present step of a run of a task."""

    STARTING = "starts"
    WAITING = "waits to ask"
    """For its turn, or after a call has failed."""
    ASKING = "asks the model"
    WORKING = "runs code"
    """Or calls tools, or ends: whatever comes after an answer of the model."""
    CHECKING = "runs the checker"


@dataclass(frozen=True)
class ResultFile:
    """A file that a task made or changed. The path is hostile data."""

    path: str
    size: int
    change: str
    problem: str = ""


@dataclass(frozen=True, kw_only=True, repr=False)
class JobResult:
    """The result of one run of a task. It does not depend on the time, nor on the machine.

    Attributes:
        id: The id of the task.
        epoch: The number of this run of the task, counted from 1.
        outcome: How the run ended, or ``checker failed`` if its checker could not judge the answer.
        text: The text of the task.
        expected: The right answer, where it is known.
        correct: Whether the answer is right, where that is known.
        answer: The answer, or the best so far if none counts; hostile data.
        check: The error message of a checker that rejected the answer, or failed; hostile data.
        stop_reason: Why the team stopped.
        objection: Why unreviewed work is not accepted, such as ``coder: max steps``.
        error: The error that ended the run, if one did.
        is_transient: Whether its infrastructure failed, so that it may succeed later.
        steps: The number of times that code ran.
        messages: The number of messages of the team.
        prompt_tokens: The tokens of all prompts.
        completion_tokens: The tokens of all replies.
        is_estimated: Whether tokens are estimated of some calls, whose servers have not told them.
        cost: What these tokens have cost, where the models have prices.
        currency: The currency of the cost.
        missing_hosts: The entries of ``egress`` that would allow the hosts that its code was denied.
        files: The files that the task made or changed.
        run: The directory of its journal, relative to the directory of the batch.
    """

    id: str
    epoch: int
    outcome: RunEnding | Unchecked
    text: str = ""
    expected: JsonValue = None
    correct: bool | None = None
    answer: str | None = None
    check: str | None = None
    stop_reason: str | None = None
    objection: str | None = None
    error: str | None = None
    is_transient: bool = False
    steps: int = 0
    messages: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    is_estimated: bool = False
    cost: float | None = None
    currency: str | None = None
    missing_hosts: Sequence[str] = ()
    files: Sequence[ResultFile] = ()
    run: str = ""

    def __repr__(self) -> str:
        return few_words(self)

    @property
    def has_failed(self) -> bool:
        """Whether the run, or the checker of its answer, has failed."""
        return self.outcome in (RunEnding.FAILED, UNCHECKED)

    @property
    def is_final(self) -> bool:
        """Whether the run is finished for good. Others run again when the batch is started again."""
        return isinstance(self.outcome, RunEnding) and self.outcome.is_final

    @property
    def counts(self) -> bool:
        """Whether its answer does."""
        return isinstance(self.outcome, RunEnding) and self.outcome.is_success

    @property
    def problem(self) -> str | None:
        """Its error, or else why its answer does not count, in a line; ``None`` if it counts."""
        if self.counts:
            return None
        return " · ".join(reasons_in(self.error) or reasons_in(self.stop_reason, self.objection)) or None

    @property
    def is_reviewed(self) -> bool:
        """Whether somebody has judged the work."""
        rejected = self.outcome is RunEnding.NOT_ACCEPTED and self.objection is None
        return rejected or self.outcome is RunEnding.ACCEPTED

    @property
    def passes(self) -> bool:
        """Whether the task is solved: the answer is right or, where that is not known, it counts."""
        return self.counts if self.correct is None else self.correct


TASK_RESULT = TypeAdapter(JobResult)
"""Writes results as JSON data, and reads them."""


@dataclass(kw_only=True)
class BatchBegan(Event):
    """A batch begins or resumes.

    Attributes:
        directory: The directory of the results.
        jobs: The number of runs: tasks times epochs.
        done: How many of them are finished already.
        outcomes: The number of these by outcome.
        reviewed: How many of them have a review of their work.
        right: How many of their answers are right.
        wrong: How many are wrong.
        workers: The number of processes that run them.
        broken: The number of lines that are not tasks.
    """

    type: ClassVar[Literal["batch_began"]]
    directory: str
    jobs: int
    done: int
    workers: int
    broken: int = 0
    outcomes: dict[str, int] = field(default_factory=dict[str, int])
    reviewed: int = 0
    right: int = 0
    wrong: int = 0


@dataclass(kw_only=True)
class LineBroken(Event):
    """A line of the tasks file is not a task and is left out.

    Attributes:
        line: Its number, counted from 1.
        problem: What is wrong; may quote the line.
    """

    type: ClassVar[Literal["line_broken"]]
    line: int
    problem: str


@dataclass(kw_only=True)
class TaskBegan(Event):
    """A run of a task begins or resumes.

    Attributes:
        id: The id of the task.
        epoch: The number of the run, counted from 1.
        goes_on: Whether it resumes.
    """

    type: ClassVar[Literal["task_began"]]
    id: str
    epoch: int
    goes_on: bool


@dataclass(kw_only=True)
class TaskEnded(Event):
    """A run of a task has ended, and its result is recorded.

    Attributes:
        result: Its result, as in ``results.jsonl``.
        tokens: How many tokens the batch has used so far.
        cost: How much money that is, where models have prices.
    """

    type: ClassVar[Literal["task_ended"]]
    result: JobResult
    tokens: int
    cost: float | None = None


@dataclass(kw_only=True)
class TaskProgressed(Event):
    """A run of a task does something else now.

    Attributes:
        id: The id of the task.
        epoch: The number of the run, counted from 1.
        doing: Its present work.
    """

    type: ClassVar[Literal["task_progressed"]]
    id: str
    epoch: int
    doing: Doing


@dataclass(kw_only=True)
class TaskRetried(Event):
    """A part of a task is retried, as its infrastructure has failed.

    Attributes:
        id: The id of the task.
        epoch: The number of the run, counted from 1.
        reason: Why it has failed.
        seconds: How long the task waits.
    """

    type: ClassVar[Literal["task_retried"]]
    id: str
    epoch: int
    reason: str
    seconds: float = 0.0


@dataclass(kw_only=True)
class BatchNoted(Event):
    """A notice for a person.

    Attributes:
        level: ``note`` or ``warning``.
        text: The notice.
    """

    type: ClassVar[Literal["batch_noted"]]
    level: str
    text: str


@dataclass(frozen=True)
class Share:
    """A share of so many tasks, from 0 to 1, with the ends of its Wilson interval for a confidence of 95 %."""

    value: float
    low: float
    high: float
    tasks: int


@dataclass(frozen=True)
class WrongAnswer:
    """An answer that is known to be wrong, cut short; hostile data.

    Attributes:
        id: The id of the task.
        epoch: The number of the run.
        expected: The right answer, where it is known.
        answer: The answer; ``None`` if there was none.
        check: The last line of what its checker said.
    """

    id: str
    epoch: int
    expected: str | None
    answer: str | None
    check: str | None


@dataclass(kw_only=True, repr=False)
class BatchResult(Event, type="batch_result"):
    """The result of a batch; its last event.

    Attributes:
        directory: The directory of the results.
        jobs: The number of runs: tasks times epochs.
        outcomes: The number of runs by outcome. Runs without a result are not counted.
        reviewed: How many runs have a review of their work, whether that has accepted it or not.
        broken: The number of lines that are not tasks.
        transient: How many runs failed because of their infrastructure.
        accuracy: The share of right answers among the tasks for which that is known; ``None`` where it is for none. With
            several epochs it is the mean over them, with the interval of as many trials as there are tasks.
        acceptance: The share of work that is accepted, or answered without a review, measured in the same way.
        pass_at: By k, the chance that at least one of k runs of a task is right, or has an answer where that is not known.
        wrong: The number of answers that are known to be wrong.
        wrong_answers: The first ten of them.
        tokens: The tokens that all runs have used.
        is_estimated: Whether they are estimated of some calls, whose servers have not told them.
        cost: What these have cost, where models have prices.
        currency: The currency of the cost.
        stop_reason: Why the batch has ended before all runs were finished.
        is_refused: Whether that is because a model's server refused the key.
        signal: The signal that stopped it, if one did.
    """

    type: ClassVar[Literal["batch_result"]]
    directory: str
    jobs: int
    outcomes: dict[str, int]
    reviewed: int = 0
    broken: int = 0
    transient: int = 0
    accuracy: Share | None = None
    acceptance: Share | None = None
    pass_at: dict[int, float]
    wrong: int = 0
    wrong_answers: Sequence[WrongAnswer] = ()
    tokens: int = 0
    is_estimated: bool = False
    cost: float | None = None
    currency: str | None = None
    stop_reason: str | None = None
    is_refused: bool = False
    signal: Signals | None = None

    def __repr__(self) -> str:
        return few_words(self)

    @property
    def left(self) -> int:
        """The number of runs without a result."""
        return self.jobs - sum(self.outcomes.values())

    @property
    def exit_code(self) -> int:
        """0 if all runs have an answer that counts and none is wrong, 128 + n if signal n stopped the batch.

        Else the first that applies: 2 a line was broken, a run or a checker failed, or the key was refused, 75 a run failed
        that may succeed later, 3 a run is parked, 1 a run is not accepted, wrong, or without a result.
        """
        outcomes = self.outcomes
        if self.signal is not None:
            return 128 + self.signal
        failed = outcomes.get(RunEnding.FAILED, 0) + outcomes.get(UNCHECKED, 0)
        if self.broken or self.is_refused or failed > self.transient:
            return 2
        if self.transient:
            return 75
        if outcomes.get(RunEnding.PARKED):
            return 3
        return int(self.left > 0 or self.wrong > 0 or outcomes.get(RunEnding.NOT_ACCEPTED, 0) > 0)
