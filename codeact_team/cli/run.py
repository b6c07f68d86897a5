"""The command ``run``."""

from __future__ import annotations

import asyncio
import errno
import os
import shlex
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path

from codeact_team.cli.conversation import AnswerOnly, listener_of
from codeact_team.cli.prompts import asking_the_person, read_file, read_standard_input
from codeact_team.cli.screen import Screen
from codeact_team.cli.signals import ENDED_BY, handling_signals
from codeact_team.core import atomic_files as whole_files
from codeact_team.core.atomic_files import Directory, NewFile
from codeact_team.core.effects import Event
from codeact_team.core.events import RunBegan
from codeact_team.core.files import parent_of
from codeact_team.core.visibility import readable
from codeact_team.errors import SettingError
from codeact_team.runs.result import RunEnding, RunResult
from codeact_team.runs.run import TIME_LIMIT, TeamRun

_ANSWER = "the answer"


@contextmanager
def answer_file(path: Path) -> Generator[Callable[[str], None]]:
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
    """A listener that knows at the end of a run how to resume it."""

    def __init__(self) -> None:
        self._record: str | None = None
        self._result: RunResult | None = None

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        if isinstance(event, RunBegan):
            self._record = None if event.bypassing_parts else event.record
            self._result = None
        elif isinstance(event, RunResult):
            self._result = event

    def redelivery(self, option: str) -> str:
        """The end of an error about something that was not delivered: the command that tries again, by an option."""
        if self._record is None:
            return ""
        return f"; to try again: codeact-team resume {shlex.quote(readable(self._record))} {option}"

    def text(self, record: str | None = None, *, of_program: bool = False) -> str | None:
        """How a person resumes the run; ``None`` where that makes no sense.

        Args:
            record: Its directory, if it was moved.
            of_program: Whether a program gives the team its tasks.
        """
        ending = None if self._result is None else self._result.ending
        # a parked run has printed its questions
        if self._record is None or ending in (RunEnding.ACCEPTED, RunEnding.PARKED):
            return None
        if of_program:
            return "to go on: run the program again"
        command = f"codeact-team resume {shlex.quote(readable(record or self._record))}"
        if self._result is None or ending is not RunEnding.NOT_ACCEPTED:
            return f"to go on: {command}"
        reason = self._result.stop_reason or ""
        if reason.startswith(TIME_LIMIT):
            return f"to go on: {command}"
        # a team that came to its end by itself comes to the same once more
        return f"to go on with a higher limit: {command} -s PATH=VALUE" if reason else None


def run_command(
    screen: Screen,
    runner: TeamRun,
    task: str | None,
    *,
    seconds: float | None,
    output: Path | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Run a team on a task, print what happens, write an accepted answer to ``output``, and return the exit code."""
    if as_json and quiet:
        raise SettingError("--json prints all events, and --quiet the answer only: leave one of them out")
    # before the answer, which may be written there, too
    runner.files.make()
    listener = AnswerOnly(screen) if quiet else listener_of(screen, as_json=as_json, answer_last=True)
    runner.dispatcher.listen(listener, essential=True)
    runner.dispatcher.listen(resume_hint := ResumeHint())
    with answer_file(output) if output is not None else nullcontext() as write:

        def deliver(result: RunResult) -> None:
            # printed text is delivered once it is out of this process
            sys.stdout.flush()
            if write is not None and result.answer is not None and result.ending is RunEnding.ACCEPTED:
                try:
                    write(result.delivered_answer or result.answer)
                except SettingError as error:
                    raise SettingError(f"{error}{resume_hint.redelivery('-o FILE')}") from error
            elif write is not None:
                screen.notice("warning", f"{output} is not written: there is no accepted answer")

        with asking_the_person(screen, as_json=as_json):
            result = asyncio.run(stoppable_run(runner, task, seconds, deliver))
        print_end(screen, result)
    if result.files_due:
        lacking = "1 file was" if result.files_due == 1 else f"{result.files_due:,} files were"
        screen.notice("error", f"{lacking} not copied{resume_hint.redelivery('--out DIR')}")
    if not (as_json or quiet) and (hint := resume_hint.text()) is not None:
        screen.notice("note", hint)
    return result.exit_code


def print_end(screen: Screen, result: RunResult) -> None:
    """Print why a run has ended, if it did not end by itself."""
    if result.signal is not None:
        screen.notice("error", ENDED_BY[result.signal])
    if result.error is not None:
        screen.notice("error", result.error)


async def stoppable_run(
    runner: TeamRun,
    task: str | None,
    seconds: float | None = None,
    deliver: Callable[[RunResult], object] = lambda _: None,
) -> RunResult:
    """Run a team, until it has ended or a signal stops it."""
    with handling_signals(runner.stop):
        return await runner.run_once(task, seconds=seconds, deliver=deliver)


def read_task(task: str | None, file: Path | None) -> str | None:
    """The task as the user gives it: in words, in a file, or on standard input; ``None`` if not at all."""
    if file is None:
        return read_standard_input("the task") if task == "-" else task
    if task is not None:
        raise SettingError("the task is given twice: as an argument and by --file")
    return read_file(file, "the task")
