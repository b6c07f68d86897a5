"""What is told of a batch."""

from __future__ import annotations

from dataclasses import dataclass
from signal import Signals

from codeact_team.batch.results import TaskResult
from codeact_team.effects import Event


@dataclass(kw_only=True)
class BatchBegan(Event):
    """A batch begins, or goes on.

    Attributes:
        directory: Where its results are.
        jobs: How many runs there are: each task as often as there are epochs.
        done: How many of them have their result from before.
        workers: How many processes run them.
        broken: How many lines are no tasks.
    """

    directory: str
    jobs: int
    done: int
    workers: int
    broken: int = 0


@dataclass(kw_only=True)
class LineBroken(Event):
    """A line of the tasks cannot be used; the others can.

    Attributes:
        line: Its number, counted from 1.
        problem: What is wrong with it; it may quote the line.
    """

    line: int
    problem: str


@dataclass(kw_only=True)
class TaskBegan(Event):
    """A run of a task begins, or goes on.

    Attributes:
        id: Of the task.
        epoch: The how-manieth of its runs.
        goes_on: Whether it was begun before.
    """

    id: str
    epoch: int
    goes_on: bool


@dataclass(kw_only=True)
class TaskEnded(Event):
    """A run of a task has come to a result, which is kept.

    Attributes:
        result: What came of it.
        tokens: What the batch has used so far.
        cost: What that has cost, where there are prices.
    """

    result: TaskResult
    tokens: int
    cost: float | None = None


@dataclass(kw_only=True)
class TaskRetried(Event):
    """Something of a task is tried again, as what is around it has failed.

    Attributes:
        id: Of the task.
        epoch: The how-manieth of its runs.
        reason: What has failed.
        seconds: After which time.
    """

    id: str
    epoch: int
    reason: str
    seconds: float = 0.0


@dataclass(kw_only=True)
class BatchNoted(Event):
    """Something that a person should know.

    Attributes:
        level: ``note`` or ``warning``.
        text: What.
    """

    level: str
    text: str


@dataclass(frozen=True)
class Share:
    """A share of the tasks.

    Attributes:
        value: From 0 to 1.
        low: Where its interval begins, in which it lies with a confidence of 95 % (Wilson).
        high: Where that ends.
        tasks: Of how many tasks.
    """

    value: float
    low: float
    high: float
    tasks: int


@dataclass(kw_only=True)
class BatchResult(Event, type="batch_result"):
    """What came of a batch; the last thing told of it.

    Attributes:
        directory: Where its results are.
        jobs: How many runs there are to be in all.
        outcomes: How many runs had which outcome; those that have none yet are not counted.
        broken: How many lines were no tasks.
        transient: How many have failed by what is around them.
        accuracy: The share of right answers, of the tasks for which that can be known; ``None`` where it is of none. With
            several epochs the mean of theirs, with the interval of as many trials as there are tasks.
        acceptance: The share of accepted work, likewise.
        pass_at: By k, the chance that at least one of k runs of a task is right, or accepted where no answer is known.
        wrong: How many answers are known to be wrong.
        tokens: What all of it has used.
        cost: What that has cost, where there are prices.
        currency: Of the cost.
        stop_reason: Why it has not come to its end.
        signal: What has stopped it, if that was a signal.
    """

    directory: str
    jobs: int
    outcomes: dict[str, int]
    broken: int = 0
    transient: int = 0
    accuracy: Share | None = None
    acceptance: Share | None = None
    pass_at: dict[int, float]
    wrong: int = 0
    tokens: int = 0
    cost: float | None = None
    currency: str | None = None
    stop_reason: str | None = None
    signal: Signals | None = None

    @property
    def left(self) -> int:
        """How many runs have no result yet."""
        return self.jobs - sum(self.outcomes.values())

    @property
    def exit_code(self) -> int:
        """As that of a run: 0 if all is accepted and no answer wrong, 128 + n if signal n stopped it.

        Else the first of these that holds: 2 something was broken or failed, 75 something failed that may succeed later,
        3 something is parked, 1 something is not accepted, wrong, or not done.
        """
        outcomes = self.outcomes
        if self.signal is not None:
            return 128 + self.signal
        if self.broken or outcomes.get("failed", 0) > self.transient:
            return 2
        if self.transient:
            return 75
        if outcomes.get("parked"):
            return 3
        return int(self.left > 0 or self.wrong > 0 or outcomes.get("not accepted", 0) > 0)
