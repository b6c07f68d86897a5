"""``codeact-team run``."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from codeact_team.cli.answer_file import answer_file
from codeact_team.cli.answer_only import AnswerOnly
from codeact_team.cli.approval_prompt import asking_the_person
from codeact_team.cli.conversation import Conversation
from codeact_team.cli.going_on import GoingOn
from codeact_team.cli.json_lines import JsonLines
from codeact_team.cli.line_reader import read_file, read_standard_input
from codeact_team.cli.screen import Screen
from codeact_team.cli.signals import ENDED_BY, handling_signals
from codeact_team.effects import Listener
from codeact_team.errors import SettingError
from codeact_team.runs import RunEnding, RunResult, TeamRunner


def run_command(
    screen: Screen,
    runner: TeamRunner,
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
    runner.make_out()
    runner.listen(_listener(screen, as_json=as_json, quiet=quiet), essential=True)
    runner.listen(going_on := GoingOn())
    with answer_file(output) if output is not None else nullcontext() as write:

        def deliver(result: RunResult) -> None:
            # what is printed is delivered once it is out of this process
            sys.stdout.flush()
            if write is not None and result.answer is not None and result.ending is RunEnding.ACCEPTED:
                try:
                    write(result.answer)
                except SettingError as error:
                    raise SettingError(f"{error}{going_on.redelivery('-o FILE')}") from error
            elif write is not None:
                screen.notice("warning", f"{output} is not written: there is no accepted answer")

        with asking_the_person(screen, as_json=as_json):
            result = asyncio.run(stoppable_run(runner, task, seconds, deliver))
        tell_what_stopped(screen, result)
    if result.files_due:
        lacking = "1 file was" if result.files_due == 1 else f"{result.files_due:,} files were"
        screen.notice("error", f"{lacking} not copied{going_on.redelivery('--out DIR')}")
    if not (as_json or quiet) and (advice := going_on.advice()) is not None:
        screen.notice("note", advice)
    return result.exit_code


def tell_what_stopped(screen: Screen, result: RunResult) -> None:
    """Print what has stopped a run, if it did not end by itself."""
    if result.signal is not None:
        screen.notice("error", ENDED_BY[result.signal])
    if result.error is not None:
        screen.notice("error", result.error)


def _listener(screen: Screen, *, as_json: bool, quiet: bool) -> Listener:
    if as_json:
        return JsonLines()
    return AnswerOnly(screen) if quiet else Conversation(screen, answer_last=True)


async def stoppable_run(
    runner: TeamRunner,
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
