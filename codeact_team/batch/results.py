"""Results of tasks, and events of a batch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from signal import Signals
from typing import Any

from pydantic import TypeAdapter

from codeact_team.batch.tasks import Job
from codeact_team.core.atomic_files import whole_file
from codeact_team.core.effects import Event
from codeact_team.core.files import made_named
from codeact_team.errors import JournalError, SettingError
from codeact_team.runs.journal.log import Log, LogReader, entry_at, understood


class Outcome(StrEnum):
    """What has become of a task."""

    ACCEPTED = "accepted"
    NOT_ACCEPTED = "not accepted"
    FAILED = "failed"
    """It could not run, or not go on: what it was given, or the environment, does not work."""
    PARKED = "parked"
    """It waits for the answer of a person who was not there."""
    STOPPED = "stopped"
    """It was interrupted, and has no result yet."""


_FINAL = (Outcome.ACCEPTED, Outcome.NOT_ACCEPTED)


@dataclass(frozen=True)
class ResultFile:
    """A file that a task has made or changed; the path is hostile data."""

    path: str
    size: int
    change: str
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """What came of one run of a task. Nothing in it depends on the clock, or on who has run it.

    Attributes:
        id: Of the task.
        epoch: The how-manieth of its runs.
        correct: Whether the answer is right, where that can be known.
        answer: As :attr:`RunResult.answer` has it; hostile data.
        check: What a checker has said of an answer that is not right; hostile data.
        run: Where its journal is, below the directory of the batch.
        is_transient: Whether it failed by what is around it, and may succeed later.
    """

    id: str
    epoch: int
    outcome: Outcome
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
    cost: float | None = None
    currency: str | None = None
    files: Sequence[ResultFile] = ()
    run: str = ""

    @property
    def is_final(self) -> bool:
        """Whether it stays when the batch is started again; what has failed is tried again then."""
        return self.outcome in _FINAL

    @property
    def passes(self) -> bool:
        """Whether it counts as solved: its answer is right, or its work accepted where nobody knows the answer."""
        return self.outcome is Outcome.ACCEPTED if self.correct is None else self.correct


_FORM = TypeAdapter(TaskResult)


def dump(result: TaskResult) -> dict[str, Any]:
    """A result as JSON."""
    return _FORM.dump_python(result, mode="json")


def load(data: Any) -> TaskResult:
    """A result that was dumped."""
    return _FORM.validate_python(data)


@dataclass
class _Known:
    digest: str
    check: str = ""
    is_final: bool = False
    offset: int | None = None


class Results:
    """The results of a batch. A context manager, which one process at a time can be in.

    ``batch.jsonl`` has what was begun, and each result when it is there; it only grows, and a line that was torn by the end
    of the process is dropped. ``results.jsonl`` is made of it: one line for each job that has a result, in the order of the
    tasks, replaced as a whole.

    Args:
        directory: That of the batch.
        batch: What tells it from another batch: a digest of its config.

    Raises:
        SettingError: If another batch is there, or the directory cannot be made.
        JournalError: If another process works on it, or it cannot be read or written.
    """

    def __init__(self, directory: Path, batch: str) -> None:
        self.path = directory / "results.jsonl"
        self._log_path = directory / "batch.jsonl"
        self._known: dict[str, _Known] = {}
        try:
            for each in (directory, directory / "runs", directory / "files"):
                with made_named(each, 0o700):
                    pass
        except OSError as error:
            raise SettingError(f"the directory {directory} cannot be made: {error.strerror}") from error
        self._log = Log(self._log_path)
        try:
            self._read(batch)
        except BaseException:
            self._log.close()
            raise

    def _read(self, batch: str) -> None:
        found = None
        with LogReader(self._log_path) as log, understood(self._log_path):
            for entry in log.new():
                if (name := entry.get("job")) is not None:
                    self._known[name] = _Known(entry["digest"])
                elif (name := entry.get("done")) is not None:
                    known = self._known[name]
                    known.check, known.offset = entry["check"], log.offset
                    known.is_final = load(entry["result"]).is_final
                else:
                    found = entry["batch"]
        if found is None:
            self._log.append({"batch": batch})
        elif found != batch:
            raise SettingError(
                f"{self._log_path.parent} has the results of another config, or of other changes to it by -s: choose another "
                "--out"
            )

    def __enter__(self) -> Results:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()

    def changed(self, job: Job) -> bool:
        """Whether a job of this name was begun that would run otherwise."""
        known = self._known.get(job.name)
        return known is not None and known.digest != job.digest

    def has_begun(self, job: Job) -> bool:
        """Whether the job was given to a worker before."""
        return job.name in self._known

    def has_final(self, job: Job) -> bool:
        """Whether there is nothing more to do for a job."""
        known = self._known.get(job.name)
        return known is not None and known.is_final and known.check == job.check_digest

    def begin(self, job: Job) -> None:
        """Note that a job is given to a worker.

        Raises:
            JournalError: If that cannot be written.
        """
        if job.name not in self._known:
            self._log.append({"job": job.name, "digest": job.digest})
            self._known[job.name] = _Known(job.digest)

    def add(self, job: Job, result: TaskResult) -> None:
        """Keep a result.

        Raises:
            JournalError: If it cannot be written.
        """
        entry = {"done": job.name, "check": job.check_digest, "result": dump(result)}
        known = self._known[job.name]
        known.offset = self._log.append(entry)
        known.check, known.is_final = job.check_digest, result.is_final

    def of(self, jobs: Sequence[Job]) -> Iterator[TaskResult]:
        """The results that there are, in the order of ``jobs``, each read when it is asked for."""
        for job in jobs:
            known = self._known.get(job.name)
            if known is not None and known.offset is not None:
                yield load(entry_at(self._log_path, known.offset)["result"])

    def write(self, jobs: Sequence[Job]) -> None:
        """Write ``results.jsonl``, as a whole. Blocks.

        Raises:
            JournalError: If it cannot be written.
        """
        try:
            with whole_file(self.path) as file:
                for result in self.of(jobs):
                    file.write(json.dumps(dump(result)).encode() + b"\n")
        except OSError as error:
            raise JournalError(f"the results cannot be written to {self.path}: {error.strerror}") from error


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
