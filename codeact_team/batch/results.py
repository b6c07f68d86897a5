"""The results of tasks, the store that keeps them, and the events of a batch."""

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


class TaskOutcome(StrEnum):
    """How a run of a task ended."""

    ACCEPTED = "accepted"
    NOT_ACCEPTED = "not accepted"
    FAILED = "failed"
    """It could not run, or not continue, because of its input or of the environment."""
    PARKED = "parked"
    """It waits for the answer of a person."""
    STOPPED = "stopped"
    """It was interrupted, and has no result yet."""


_FINAL = (TaskOutcome.ACCEPTED, TaskOutcome.NOT_ACCEPTED)


@dataclass(frozen=True)
class ResultFile:
    """A file that a task made or changed. The path is hostile data."""

    path: str
    size: int
    change: str
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """The result of one run of a task. It does not depend on the time, nor on the machine.

    Attributes:
        id: The id of the task.
        epoch: The number of this run of the task, counted from 1.
        correct: Whether the answer is right, where that is known.
        answer: As :attr:`RunResult.answer`; hostile data.
        check: The error message of a checker that rejected the answer; hostile data.
        run: The directory of its journal, relative to that of the batch.
        is_transient: Whether its infrastructure failed, so that it may succeed later.
    """

    id: str
    epoch: int
    outcome: TaskOutcome
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
        """Whether the run is finished for good. Others run again when the batch is started again."""
        return self.outcome in _FINAL

    @property
    def passes(self) -> bool:
        """Whether the task is solved: the answer is right or, where that is not known, the work is accepted."""
        return self.outcome is TaskOutcome.ACCEPTED if self.correct is None else self.correct


_FORM = TypeAdapter(TaskResult)


def dump(result: TaskResult) -> dict[str, Any]:
    """A result as JSON data."""
    return _FORM.dump_python(result, mode="json")


def load(data: Any) -> TaskResult:
    """The result that was dumped."""
    return _FORM.validate_python(data)


@dataclass
class _Known:
    digest: str
    check: str = ""
    is_final: bool = False
    offset: int | None = None


class ResultStore:
    """The results of a batch on disk. A context manager, which only one process at a time can enter.

    ``batch.jsonl`` has a line for each job that began, and for each result. It only grows; a line that was torn when its
    process died is dropped. ``results.jsonl`` is derived from it: a line for each job with a result, in the order of the tasks.

    Args:
        directory: The directory of the batch.
        batch: A digest of the config, which tells this batch from others.

    Raises:
        SettingError: If the directory has another batch, or cannot be made.
        JournalError: If another process uses it, or it cannot be read or written.
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

    def __enter__(self) -> ResultStore:
        return self

    def __exit__(self, *_: object) -> None:
        self._log.close()

    def changed(self, job: Job) -> bool:
        """Whether a different job of the same name has begun."""
        known = self._known.get(job.name)
        return known is not None and known.digest != job.digest

    def has_begun(self, job: Job) -> bool:
        """Whether the job has begun before."""
        return job.name in self._known

    def has_final(self, job: Job) -> bool:
        """Whether the job is finished, and judged by the same expected answer and checker."""
        known = self._known.get(job.name)
        return known is not None and known.is_final and known.check == job.check_digest

    def begin(self, job: Job) -> None:
        """Record that a job begins.

        Raises:
            JournalError: If that cannot be written.
        """
        if job.name not in self._known:
            self._log.append({"job": job.name, "digest": job.digest})
            self._known[job.name] = _Known(job.digest)

    def add(self, job: Job, result: TaskResult) -> None:
        """Record the result of a job.

        Raises:
            JournalError: If it cannot be written.
        """
        entry = {"done": job.name, "check": job.check_digest, "result": dump(result)}
        known = self._known[job.name]
        known.offset = self._log.append(entry)
        known.check, known.is_final = job.check_digest, result.is_final

    def of(self, jobs: Sequence[Job]) -> Iterator[TaskResult]:
        """The results of those ``jobs`` that have one, in their order; each is read from disk when it is asked for."""
        for job in jobs:
            known = self._known.get(job.name)
            if known is not None and known.offset is not None:
                yield load(entry_at(self._log_path, known.offset)["result"])

    def write(self, jobs: Sequence[Job]) -> None:
        """Replace ``results.jsonl``. Blocks.

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
    """A batch begins or resumes.

    Attributes:
        directory: The directory of the results.
        jobs: The number of runs: tasks times epochs.
        done: How many of them are finished already.
        workers: The number of processes that run them.
        broken: The number of lines that are not tasks.
    """

    directory: str
    jobs: int
    done: int
    workers: int
    broken: int = 0


@dataclass(kw_only=True)
class LineBroken(Event):
    """A line of the tasks file is not a task, and is left out.

    Attributes:
        line: The number of the line, counted from 1.
        problem: What is wrong with it; it may quote the line.
    """

    line: int
    problem: str


@dataclass(kw_only=True)
class TaskBegan(Event):
    """A run of a task begins or resumes.

    Attributes:
        id: The id of the task.
        epoch: The number of the run, counted from 1.
        goes_on: Whether it has begun before.
    """

    id: str
    epoch: int
    goes_on: bool


@dataclass(kw_only=True)
class TaskEnded(Event):
    """A run of a task has ended, and its result is recorded.

    Attributes:
        result: The result.
        tokens: The tokens that the batch has used so far.
        cost: What the batch has cost so far, where models have prices.
    """

    result: TaskResult
    tokens: int
    cost: float | None = None


@dataclass(kw_only=True)
class TaskRetried(Event):
    """A part of a task is retried, as its infrastructure has failed.

    Attributes:
        id: The id of the task.
        epoch: The number of the run, counted from 1.
        reason: What has failed.
        seconds: The delay until the retry.
    """

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

    level: str
    text: str


@dataclass(frozen=True)
class Share:
    """A share of the tasks.

    Attributes:
        value: The share, from 0 to 1.
        low: The lower end of its Wilson interval, for a confidence of 95 %.
        high: The upper end.
        tasks: The number of tasks.
    """

    value: float
    low: float
    high: float
    tasks: int


@dataclass(kw_only=True)
class BatchResult(Event, type="batch_result"):
    """The result of a batch; its last event.

    Attributes:
        directory: The directory of the results.
        jobs: The number of runs: tasks times epochs.
        outcomes: The number of runs by outcome. Runs without a result are not counted.
        broken: The number of lines that are not tasks.
        transient: How many runs failed because of their infrastructure.
        accuracy: The share of right answers among the tasks for which that is known; ``None`` where it is for none. With
            several epochs it is the mean over them, with the interval of as many trials as there are tasks.
        acceptance: The share of accepted work, measured in the same way.
        pass_at: By k, the chance that at least one of k runs of a task is right, or accepted where that is not known.
        wrong: The number of answers that are known to be wrong.
        tokens: The tokens that all runs have used.
        cost: What these have cost, where models have prices.
        currency: The currency of the cost.
        stop_reason: Why the batch has ended before all runs had a result.
        signal: The signal that stopped it, if one did.
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
        """The number of runs without a result."""
        return self.jobs - sum(self.outcomes.values())

    @property
    def exit_code(self) -> int:
        """0 if all runs are accepted and no answer is wrong, 128 + n if signal n stopped the batch.

        Else the first that applies: 2 a line was broken or a run failed, 75 a run failed that may succeed later, 3 a run is
        parked, 1 a run is not accepted, wrong, or without a result.
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
