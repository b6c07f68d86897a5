"""Answers the questions for which a run was parked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict

from pydantic import JsonValue

from codeact_team.approval.asked_question import AskedQuestion
from codeact_team.approval.input_function import read_answer
from codeact_team.config.written import credentials_of_environment
from codeact_team.errors import JournalError, SettingError
from codeact_team.events import OpenQuestion
from codeact_team.journal import Past, Recorder, RunDirectory
from codeact_team.runs.kept_runs import KeptRun, RunState


class ParkedRun:
    """A run that waits for answers. Blocks.

    Args:
        directory: Where it is kept.

    Attributes:
        open: What nobody has answered yet.

    Raises:
        JournalError: If it does not wait, or cannot be read.
    """

    def __init__(self, directory: RunDirectory) -> None:
        self._directory = directory
        run = KeptRun.read(directory)
        if run.state is RunState.RUNNING:
            raise JournalError(f"the run {run.id} has not ended: another process works on it")
        if run.state is not RunState.PARKED:
            why = f": {run.problem}" if run.problem else ""
            raise JournalError(f"the run {run.id} waits for no answer, as it is {run.state.value}{why}")
        self.open: Sequence[OpenQuestion] = list(Past(directory).open.values())

    def answer(self, text: str, number: int | None = None) -> OpenQuestion:
        """Answer a question, once and for all. It is another one if it is asked again.

        Args:
            text: ``yes``, ``no``, ``no`` with a reason, or ``always``; what is no question for approval takes any text.
            number: Of the question; ``None`` for the only one.

        Returns:
            The question.

        Raises:
            SettingError: If that is no answer to it, or it is not clear which one is meant.
            JournalError: If it is not open, or the answer cannot be written.
        """
        question = self.question(number)
        outcome = _outcome(question, text)
        if question.is_lost:
            raise JournalError(
                f"no answer reaches question {question.n}: what has asked it was stopped half-way, and is not done twice, as it "
                "is code that could reach more than its workspace, or a tool. Resume the run on a terminal, to be asked anew"
            )
        recorder, past = Recorder.reopen(self._directory, credentials_of_environment(os.environ))
        try:
            # somebody may have been faster
            if past.open.get(question.n) != question:
                raise JournalError(f"question {question.n} is not open any more")
            recorder.answer(question, outcome)
            del past.open[question.n]
            self.open = list(past.open.values())
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
                raise SettingError(f"say by --question which of the open questions is meant: {known}")
            return self.open[0]
        for question in self.open:
            if question.n == number:
                return question
        raise JournalError(f"the run has no open question {number}, but {known}")


def _outcome(question: OpenQuestion, text: str) -> JsonValue:
    if question.kind != AskedQuestion.kind:
        return text
    if (answer := read_answer(text)) is None:
        raise SettingError(
            f"{text!r} is no answer to question {question.n}: yes, no (a reason may follow) or always would be"
        )
    return asdict(answer)
