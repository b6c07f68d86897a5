"""Recorded runs: their states, their removal, and answers to their questions."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from pydantic import JsonValue

from codeact_team.core.events import OpenQuestion
from codeact_team.errors import JournalError, SettingError
from codeact_team.files.opening import below, lock, open_regular, opened, parent_of
from codeact_team.files.trees import files_below, move, remove
from codeact_team.journal.history import History
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.recorder import Recorder
from codeact_team.journal.result import RunEnding, RunResult
from codeact_team.journal.run_directory import About, RunDirectory
from codeact_team.text.redaction import credentials_of_environment
from codeact_team.tools.approvals import AskedQuestion, read_answer


class RunState(StrEnum):
    """Whether a run works, how it ended, or why it has no end."""

    RUNNING = "running"
    ACCEPTED = RunEnding.ACCEPTED.value
    ANSWERED = RunEnding.ANSWERED.value
    NOT_ACCEPTED = RunEnding.NOT_ACCEPTED.value
    FAILED = RunEnding.FAILED.value
    STOPPED = RunEnding.STOPPED.value
    PARKED = RunEnding.PARKED.value
    READY = "ready"
    """It was parked, its questions are answered, and it is not resumed yet."""
    CRASHED = "crashed"
    """It has no end, and no process holds it."""
    DAMAGED = "damaged"
    """Its record cannot be read."""


@dataclass(frozen=True)
class KeptRun:
    """A recorded run, by the begin and the end of its record; the rest is not read.

    Attributes:
        directory: Of the record.
        state: What has become of it.
        about: As it began; ``None`` if that cannot be read.
        task: The first task; empty if unknown.
        result: Its result, if it has ended.
        problem: Why it cannot be read.
    """

    directory: RunDirectory
    state: RunState
    about: About | None = None
    task: str = ""
    result: RunResult | None = None
    problem: str | None = None

    @classmethod
    def read(cls, directory: RunDirectory) -> KeptRun:
        """Read the state of a run. Blocks."""
        run = RecordedRun(directory)
        try:
            about = run.about
        except JournalError as error:
            return cls(directory, RunState.DAMAGED, problem=str(error))
        # first, as a run that ends meanwhile has a result then
        is_running = run.is_running
        try:
            there = directory.lines.exists()
            result, task = (run.result(), run.task or "") if there else (None, about.task or "")
        except JournalError as error:
            return cls(directory, RunState.DAMAGED, about, about.task or "", problem=str(error))
        if is_running:
            return cls(directory, RunState.RUNNING, about, task)
        state = RunState(result.ending.value) if result else RunState.CRASHED
        if state is RunState.PARKED and run.has_answers:
            with suppress(JournalError):
                state = state if History(directory).open else RunState.READY
        return cls(directory, state, about, task, result)

    @property
    def id(self) -> str:
        """Its name."""
        return self.directory.path.name

    @cached_property
    def changed(self) -> float:
        """The time of its last entry, in seconds since the epoch. Blocks."""
        for path in (self.directory.lines, self.directory.path):
            with suppress(OSError):
                return path.stat().st_mtime
        return 0.0

    @cached_property
    def size(self) -> int:
        """The bytes of its record and its workspace. Blocks."""
        return sum(map(_size, [self.directory.path, *self.directory.workspaces()]))

    def remove(self) -> bool:
        """Remove it with its workspace, unless a process works on it. Returns whether it is gone. Blocks.

        Raises:
            JournalError: If it cannot be removed.
        """
        path, lines, blobs = self.directory.path, self.directory.lines, self.directory.blobs
        try:
            with parent_of(path) as (runs, name), below(runs, name) as directory:
                with suppress(FileNotFoundError):
                    if not stat.S_ISREG(os.stat(lines.name, dir_fd=directory, follow_symlinks=False).st_mode):
                        # no process holds what cannot be a journal
                        odd = f"{lines.name}.odd"
                        move(lines.name, odd, within=directory, to=directory)
                descriptor = open_regular(lines, os.O_RDWR | os.O_CREAT)
                try:
                    if not lock(descriptor):
                        return False
                    for workspace in self.directory.workspaces():
                        with parent_of(workspace) as (above, its_name):
                            remove(its_name, above)
                    # an interrupted removal is still listed while much of the run is left
                    with suppress(FileNotFoundError):
                        remove(blobs.name, directory)
                    remove(name, runs)
                finally:
                    os.close(descriptor)
        except OSError as error:
            raise JournalError(f"the run {path} cannot be removed: {error.strerror}") from error
        return True


def _size(directory: Path) -> int:
    with suppress(OSError), opened(directory) as top:
        return sum(status.st_size for _, _, status in files_below(top))
    return 0


def beyond(runs: Iterable[KeptRun], size: int) -> Iterator[KeptRun]:
    """The runs that do not fit into ``size`` bytes with all before them. Blocks."""
    total = 0
    for run in runs:
        total += run.size
        if total > size:
            yield run


class ParkedRun:
    """A run that waits for answers. Blocks.

    Attributes:
        open: The questions without an answer.

    Raises:
        JournalError: If it does not wait, or cannot be read.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        run = KeptRun.read(directory)
        if run.state is RunState.RUNNING:
            raise JournalError(f"the run {run.id} has not ended: another process works on it")
        if run.state not in (RunState.PARKED, RunState.READY):
            why = f": {run.problem}" if run.problem else ""
            raise JournalError(f"the run {run.id} is not waiting for an answer: it is {run.state.value}{why}")
        self.open: Sequence[OpenQuestion] = list(History(directory).open.values())

    @property
    def numbers(self) -> Sequence[int]:
        """Those of the questions without an answer."""
        return [question.n for question in self.open]

    @property
    def answerable(self) -> Sequence[int]:
        """The numbers of those that an answer still reaches."""
        return [question.n for question in self.open if not question.is_lost]

    def answer(self, text: str, number: int | None = None) -> OpenQuestion:
        """Answer a question, once and for all. It is another one if it is asked again.

        Args:
            text: ``yes``, ``no``, ``no`` with a reason, or ``always`` for an approval; any text for other questions.
            number: Of the question, which is returned; ``None`` for the only one.

        Raises:
            SettingError: If that is no answer to it, or the number is missing.
            JournalError: If it is not open, or the answer cannot be written.
        """
        question = self.question(number)
        outcome: JsonValue = text
        if question.kind == AskedQuestion.kind:
            if (answer := read_answer(text)) is None:
                raise SettingError(
                    f"{text!r} is not an answer to question {question.n}: give yes, no (a reason may follow) or always"
                )
            outcome = asdict(answer)
        if question.is_lost:
            raise JournalError(
                f"no answer reaches question {question.n}: what asked it, a tool or code that could reach more than its "
                "workspace, was stopped half-way and is not repeated. Resume the run on a terminal, to be asked anew"
            )
        recorder, history = Recorder.reopen(self._directory, credentials_of_environment(os.environ))
        try:
            # somebody may have been faster
            if history.open.get(question.n) != question:
                raise JournalError(f"question {question.n} is not open any more")
            recorder.answer(question, outcome)
            del history.open[question.n]
            self.open = list(history.open.values())
        finally:
            recorder.close()
        return question

    def question(self, number: int | None) -> OpenQuestion:
        """The open question with a number; ``None`` for the only one. Raises as :meth:`answer`."""
        if not self.open:
            raise JournalError("all questions of the run are answered: resume it")
        known = ", ".join(str(question.n) for question in self.open)
        if number is None:
            if len(self.open) > 1:
                raise SettingError(f"choose one of the open questions by --question: {known}")
            return self.open[0]
        for question in self.open:
            if question.n == number:
                return question
        raise JournalError(f"the run has no open question {number}; open are: {known}")
