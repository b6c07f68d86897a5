"""What came of a task of a batch, and the file in which that is kept."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from codeact_team.batch.tasks import Job
from codeact_team.errors import JournalError, SettingError
from codeact_team.files.whole_files import whole_file
from codeact_team.journal.log import Log, LogReader, entry_at, understood
from codeact_team.system.named_paths import made_named


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
