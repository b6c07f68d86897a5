"""Keeps the results of a batch on disk."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from codeact_team.batch.results import TASK_RESULT, JobResult
from codeact_team.batch.tasks import Job
from codeact_team.errors import JournalError, SettingError
from codeact_team.files.atomic import whole_file
from codeact_team.files.opening import made_named
from codeact_team.journal.log import Log, LogReader, entry_at, understood


@dataclass
class _Known:
    digest: str
    check: str = ""
    is_final: bool = False
    has_failed: bool = False
    offset: int | None = None


def described(result: JobResult, job: Job) -> JobResult:
    """A result with what the tasks file says of its job."""
    return replace(result, text=job.text, expected=job.expected)


class ResultStore:
    """The results of a batch. A context manager, which only one process at a time can enter.

    ``batch.jsonl`` has a line for each job that began, and for each result. It only grows; a line that was torn when its
    process died is dropped. ``results.jsonl`` is derived from it: a line for each job with a result, in the order of the tasks.

    Args:
        directory: The directory of the batch.
        batch: A digest of the config, which tells this batch from others.
        former: The digest that an earlier version took for it.

    Raises:
        SettingError: If the directory has another batch, or cannot be made.
        JournalError: If another process uses it, or it cannot be read or written. So do all methods that write.
    """

    def __init__(self, directory: Path, batch: str, former: str = "") -> None:
        self.path: Path = directory / "results.jsonl"
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
            self._read(batch, former)
        except BaseException:
            self._log.close()
            raise

    def _read(self, batch: str, former: str) -> None:
        found = None
        with LogReader(self._log_path) as log, understood(self._log_path):
            for entry in log.new():
                if (name := entry.get("job")) is not None:
                    self._known[name] = _Known(entry["digest"])
                elif (name := entry.get("done")) is not None:
                    known = self._known[name]
                    known.check, known.offset = entry["check"], log.offset
                    result = TASK_RESULT.validate_python(entry["result"])
                    known.is_final, known.has_failed = result.is_final, result.has_failed
                else:
                    found = entry["batch"]
        if found is None:
            self._log.append({"batch": batch})
        elif found not in (batch, former):
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

    def has_failed(self, job: Job) -> bool:
        """Whether the job, or the checker of its answer, has failed."""
        known = self._known.get(job.name)
        return known is not None and known.has_failed

    def begin(self, job: Job) -> None:
        """Record that a job begins."""
        if job.name not in self._known:
            self._log.append({"job": job.name, "digest": job.digest})
            self._known[job.name] = _Known(job.digest)

    def add(self, job: Job, result: JobResult) -> None:
        """Record the result of a job."""
        dumped = TASK_RESULT.dump_python(result, mode="json", exclude={"text", "expected"})
        known = self._known[job.name]
        known.offset = self._log.append({"done": job.name, "check": job.check_digest, "result": dumped})
        known.check = job.check_digest
        known.is_final, known.has_failed = result.is_final, result.has_failed

    def of(self, jobs: Sequence[Job]) -> Iterator[JobResult]:
        """The results of those ``jobs`` that have one, in their order; each is read from disk when it is asked for.

        What another expected answer or checker has said of an answer is left out.
        """
        for job in jobs:
            known = self._known.get(job.name)
            if known is not None and known.offset is not None:
                result = TASK_RESULT.validate_python(entry_at(self._log_path, known.offset)["result"])
                if known.check != job.check_digest:
                    result = replace(result, correct=None, check=None)
                yield described(result, job)

    def write(self, jobs: Sequence[Job]) -> None:
        """Replace ``results.jsonl``. Blocks."""
        try:
            with whole_file(self.path) as file:
                for result in self.of(jobs):
                    file.write(json.dumps(TASK_RESULT.dump_python(result, mode="json")).encode() + b"\n")
        except OSError as error:
            raise JournalError(f"the results cannot be written to {self.path}: {error.strerror}") from error
