"""The command ``run``."""

from __future__ import annotations

import asyncio
import errno
import os
import shlex
import sys
from collections.abc import Callable, Collection, Coroutine, Generator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from codeact_team.cli.conversation import AnswerOnly, listener_of
from codeact_team.cli.prompts import (
    asking_the_person,
    has_piped_input,
    is_input_ready,
    read_file,
    read_standard_input,
)
from codeact_team.cli.screen import Screen
from codeact_team.cli.signals import ENDED_BY, handling_signals
from codeact_team.config.components import providers_in
from codeact_team.config.document import Document, read_document
from codeact_team.core.effects import Event
from codeact_team.core.events import OpenQuestion, RunBegan, RunParked
from codeact_team.errors import CodeActTeamError, SettingError
from codeact_team.files import atomic as whole_files
from codeact_team.files.atomic import Directory, NewFile
from codeact_team.files.opening import parent_of
from codeact_team.journal.result import RunEnding, RunResult
from codeact_team.runs.base import Run
from codeact_team.runs.remedies import advice, another_setting, higher_limit
from codeact_team.runs.run import TeamRun, own_task
from codeact_team.text.visibility import readable

_ANSWER = "the answer"
_PATIENCE = 1.0
"""Seconds for the first byte on standard input."""
_LOST = "\n(no answer reaches it: the code that asked was stopped half-way, and is not repeated. Resume the run on a terminal)"


@contextmanager
def _answer_file(path: Path) -> Generator[Callable[[str], None]]:
    """Yields a function that writes the answer to a file, all at once or not at all.

    The path is resolved here: code that may change the directory meanwhile does not lead the answer to another one.

    Raises:
        SettingError: If no file can be written there, at the beginning; or at the end, if that has changed.
    """
    with ExitStack() as stack:
        with _explained(path, _ANSWER):
            directory, name = stack.enter_context(whole_files.place_of(path))
        yield partial(_write, path, directory, name)


def _write(path: Path, directory: Directory, name: str, answer: str) -> None:
    content = answer if answer.endswith("\n") else f"{answer}\n"
    with _explained(path, _ANSWER), parent_of(path) as (now, _):
        if not os.path.samestat(os.fstat(now), os.fstat(directory.top)):
            raise OSError(errno.ESTALE, "its directory was replaced by another while the run worked")
        with directory.new_file(name) as file:
            file.write(content.encode(errors="replace"))
            file.replace()


@contextmanager
def whole_file(path: Path, what: str, *, replace: bool = True) -> Generator[NewFile]:
    """A file that is there at the end of this, unless something fails within it.

    Args:
        path: Its path. A file of that name is replaced, and nothing else.
        what: The content, for errors.
        replace: Whether it may replace a file.

    Raises:
        SettingError: If it cannot be written.
    """
    with _explained(path, what), whole_files.whole_file(path, replace=replace) as file:
        yield file


@contextmanager
def _explained(path: Path, what: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise SettingError(f"{what} cannot be written to {path}: {error.strerror}") from error


class ResumeHint:
    """A listener that knows at the end of a run what a person can do next.

    Args:
        needed: Options that were given, and without which the run cannot be resumed.
        wanted: Options that were given, and name the wishes for the run.
    """

    def __init__(self, needed: Sequence[str] = (), wanted: Sequence[str] = ()) -> None:
        self.needed: Sequence[str] = needed
        self._wanted = wanted
        self._record: str | None = None
        self._result: RunResult | None = None
        self._questions: Sequence[OpenQuestion] = ()

    @property
    def is_parked(self) -> bool:
        """Whether the run waits for an answer."""
        return self._result is not None and self._result.ending is RunEnding.PARKED

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        if isinstance(event, RunBegan):
            self._record = None if event.bypassing_parts else event.record
            self._result, self._questions = None, ()
        elif isinstance(event, RunParked):
            self._record, self._questions = event.record, event.questions
        elif isinstance(event, RunResult):
            self._result = event

    def redelivery(self, option: str) -> str:
        """The end of an error about something that was not delivered: the command that tries again, by an option."""
        if self._record is None:
            return ""
        return f"; to try again: {command('resume', self._record, *self.needed)} {option}"

    def resume(self, record: str) -> str:
        """The command that resumes the run in a directory with the same options."""
        return command("resume", record, *self.needed, *self._wanted)

    def text(
        self,
        document: Document | None,
        record: str | None = None,
        *,
        program: str | None = None,
        still_open: Collection[int] | None = None,
    ) -> str | None:
        """Return the next steps for a person, in lines that can be copied; ``None`` if nothing helps.

        Args:
            document: The config of the run, if it is known.
            record: Its directory, if it was moved.
            program: Where a program runs, the sentence that says how to go on.
            still_open: The numbers of the questions without an answer; ``None`` for all.
        """
        result, place = self._result, record or self._record
        if result is not None and result.ending.is_success:
            return None
        if place is not None and self._record is not None:
            if program is not None and not self.is_parked:
                return f"to go on: {program}"
            resume = self.resume(place)
            if self.is_parked:
                return self._to_answer(place, resume, still_open)
            if result is None or result.ending is not RunEnding.NOT_ACCEPTED:
                return _to_go_on(resume, document, result)
            if document is not None and (options := higher_limit(document, result)):
                return f"to go on with a higher limit: {resume} {shlex.join(options)}"
        # a team that came to its end by itself comes to the same once more
        if document is None or result is None or result.ending is not RunEnding.NOT_ACCEPTED:
            return None
        return advice(document, result)

    def kept(self, document: Document | None) -> str | None:
        """Where a run that has succeeded is kept, and what to do with it."""
        if self._record is None:
            return None
        shown = ["codeact-team show last"]
        if document is not None and own_task(document):
            shown.append("codeact-team help tutorial")
        return f"kept in {readable(self._record)}\n{' · '.join(shown)}"

    def _to_answer(self, place: str, resume: str, still_open: Collection[int] | None) -> str:
        questions = [
            question for question in self._questions if still_open is None or question.n in still_open
        ]
        if not questions:
            return f"its question is answered; to go on: {resume}"
        asked = "\n".join(
            f"question {question.n}: {question.text}{_LOST if question.is_lost else ''}"
            for question in questions
        )
        lines = [f"the run is parked until this is answered:\n{asked}"]
        if not all(question.is_lost for question in questions):
            several = bool(questions[1:])
            one = "; --question N in place of --all answers one" if several else ""
            lines.append(f"to answer: {command('answer', place, *['--all'] * several)} ANSWER{one}")
        return "\n".join([*lines, f"to go on: {resume}"])


def _to_go_on(resume: str, document: Document | None, result: RunResult | None) -> str:
    wrong = None if result is None else result.wrong_setting
    if document is not None and wrong is not None and (options := another_setting(document, wrong)):
        how = "with another model" if wrong.name == "model" else "at another address"
        return f"to go on {how}: {resume} {shlex.join(options)}"
    return f"to go on: {resume}"


def command(name: str, record: str, *options: str) -> str:
    """A command about a recorded run, for a person to copy."""
    return shlex.join(["codeact-team", name, readable(record), *options])


def run_command(
    screen: Screen,
    runner: TeamRun,
    task: str | None,
    *,
    seconds: float | None,
    output: Path | None,
    hint: ResumeHint,
    as_json: bool,
    quiet: bool,
) -> int:
    """Run a team on a task, print what happens, write an answer that counts to ``output``, and return the exit code."""
    if as_json and quiet:
        raise SettingError("--json prints all events, and --quiet the answer only: leave one of them out")
    # before the answer, which may be written there, too
    runner.files.make()
    if output is not None:
        runner.recording.answer_file = str(output.absolute())
    listener = AnswerOnly(screen) if quiet else listener_of(screen, as_json=as_json, answer_last=True)
    runner.dispatcher.listen(listener, essential=True)
    runner.dispatcher.listen(hint)
    if task is not None:
        runner.dispatcher.listen(partial(_warn_of_recordings, screen, runner))
    with _answer_file(output) if output is not None else nullcontext() as write:

        def deliver(result: RunResult) -> None:
            # printed text is delivered once it is out of this process
            sys.stdout.flush()
            if write is not None and result.answer is not None and result.ending.is_success:
                try:
                    write(result.delivered_answer or result.answer)
                except SettingError as error:
                    raise SettingError(f"{error}{hint.redelivery('-o FILE')}") from error
            elif write is not None:
                screen.notice("warning", f"{output} is not written: the run did not come to an answer")

        with asking_the_person(screen, runner.leave, as_json=as_json):
            running = runner.run_once(task, seconds=seconds, deliver=deliver)
            result = asyncio.run(stoppable(runner, running))
        print_end(screen, result)
    if result.files_due:
        lacking = "1 file was" if result.files_due == 1 else f"{result.files_due:,} files were"
        screen.notice("error", f"{lacking} not copied{hint.redelivery('--out DIR')}")
    # a person can only answer a question that is shown
    if not as_json and (hint.is_parked or not quiet):
        _tell_what_is_next(screen, runner, result, hint)
    return result.exit_code


def _warn_of_recordings(screen: Screen, runner: TeamRun, event: Event) -> None:
    if isinstance(event, RunBegan) and runner.document is not None and own_task(runner.document):
        screen.notice("warning", "the models of this config are recorded: they do not read the task")


def _tell_what_is_next(screen: Screen, runner: TeamRun, result: RunResult, hint: ResumeHint) -> None:
    # of what went well, who looks at a terminal is told
    is_seen = result.ending.is_success and screen.renders
    if (next_step := (hint.kept if is_seen else hint.text)(runner.document)) is not None:
        screen.notice("note", next_step, again=True)


def print_end(screen: Screen, result: RunResult) -> None:
    """Print why a run has ended, if it did not end by itself."""
    if result.signal is not None:
        screen.notice("error", ENDED_BY[result.signal])
    if result.error is not None:
        screen.notice("error", result.error)


async def stoppable(runner: Run, work: Coroutine[Any, Any, RunResult]) -> RunResult:
    """Await the work of a run, which signals stop."""
    with handling_signals(runner.stop):
        return await work


def _asks_by_input(config: str) -> bool:
    """Whether an agent of a config reads the answers of a person from standard input."""
    with suppress(CodeActTeamError):
        providers = providers_in(read_document(config).data)
        return any(provider.endswith(".UserProxyAgent") for provider in providers)
    # the run reports the error
    return False


def read_task(screen: Screen, config: str, task: str | None, file: Path | None) -> str | None:
    """The task as the user gives it: in words, in a file, or on standard input; ``None`` if not at all.

    What is piped in goes with it, as in ``cat log | codeact-team run codeact "What went wrong?"``.
    """
    if task == "-" and file is None:
        return read_standard_input("the task")
    if file is not None:
        if task is not None:
            raise SettingError("the task is given twice: as an argument and by --file")
        task = read_file(file, "the task")
    if not has_piped_input() or _asks_by_input(config):
        return task
    if not is_input_ready(_PATIENCE):
        screen.notice(
            "warning",
            "nothing has come on standard input, so it is ignored; give - as the task to wait for it, or redirect it "
            "from /dev/null to be rid of this warning",
        )
        return task
    piped = read_standard_input("the text that goes with the task").strip()
    return "\n\n".join(filter(None, [task, piped])) or None
