"""The commands ``answer``, ``replay`` and ``runs``."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from autogen_agentchat.messages import BaseChatMessage
from pydantic import ByteSize, TypeAdapter, ValidationError

from codeact_team.cli.chat import chat_command
from codeact_team.cli.conversation import Conversation, size_of, tell_beside
from codeact_team.cli.json_lines import JsonLines, print_json
from codeact_team.cli.prompts import decode
from codeact_team.cli.run import stoppable_run, tell_what_stopped
from codeact_team.cli.screen import Screen
from codeact_team.core.effects import Event, Listener
from codeact_team.core.events import MessageSent, OpenQuestion, Replayed
from codeact_team.core.sandbox_description import without_note
from codeact_team.core.visibility import cut, readable
from codeact_team.errors import SettingError
from codeact_team.runs.journal.recorded_run import RecordedRun
from codeact_team.runs.journal.run_directory import RunDirectory, runs_in
from codeact_team.runs.kept_runs import KeptRun, ParkedRun, RunState, beyond
from codeact_team.runs.replaying import ReplayedRun
from codeact_team.runs.result import RunEnding, RunResult
from codeact_team.tools.approvals import AskedQuestion


def answer_command(
    screen: Screen, directory: RunDirectory, words: Sequence[str], number: int | None, *, as_json: bool
) -> int:
    """Answer a question of a run that is parked, or show what is open where there are no ``words``; the exit code."""
    run = ParkedRun(directory)
    if not words:
        questions = run.open if number is None else [run.question(number)]
        for question in questions:
            if as_json:
                print_json(asdict(question))
            else:
                _show_question(screen, question, directory)
        if not as_json:
            _tell_what_is_left(screen, run, directory)
        return 0
    text = " ".join(words)
    if text == "-":
        text = decode(sys.stdin.buffer.read(), "the answer from standard input").removesuffix("\n")
    question = run.answer(text, number)
    if as_json:
        print_json({"answered": question.n, "key": question.key, "open": [each.n for each in run.open]})
        return 0
    screen.text(f"✓ question {question.n} of {question.agent} is answered", "green")
    _tell_what_is_left(screen, run, directory)
    return 0


def _show_question(screen: Screen, question: OpenQuestion, directory: RunDirectory) -> None:
    screen.text(f"── question {question.n}", "bold yellow")
    if question.kind != AskedQuestion.kind and (said := _said_last(directory)) is not None:
        # the prompt alone says little
        screen.text(f"{said.source} has said:", "dim")
        screen.quote(without_note(said).to_text(), None)
    screen.text(question.text)
    if question.is_lost:
        screen.notice(
            "warning", f"what has asked question {question.n} is not done twice: no answer reaches it"
        )


def _said_last(directory: RunDirectory) -> BaseChatMessage | None:
    said: BaseChatMessage | None = None
    for event in RecordedRun(directory).events():
        if isinstance(event, MessageSent) and isinstance(event.message, BaseChatMessage):
            said = event.message
    return said


def _tell_what_is_left(screen: Screen, run: ParkedRun, directory: RunDirectory) -> None:
    path = directory.path
    answerable = [question for question in run.open if not question.is_lost]
    if not answerable:
        is_of_a_program = RecordedRun(directory).about.task is None
        how = "when its program runs again" if is_of_a_program else f"by: codeact-team resume {path}"
        screen.notice("note", f"the run goes on {how}")
        return
    ways = "yes, no (a reason may follow) or always"
    if all(question.kind != AskedQuestion.kind for question in answerable):
        ways = "a text, or - to read it from standard input"
    which = f" --question {answerable[0].n}" if run.open[1:] else ""
    screen.notice("note", f"to answer: codeact-team answer {path}{which} ANSWER, which is {ways}")


_DIFFERS = 1


def replay_command(screen: Screen, run: ReplayedRun, *, as_json: bool, quiet: bool) -> int:
    """Replay a run, print what happens and what differs, and return the exit code."""
    if as_json and quiet:
        raise SettingError("--json prints all events, and --quiet what was found only: leave one of them out")
    listener = _listener(screen, as_json=as_json, quiet=quiet)
    run.runner.dispatcher.listen(listener, essential=True)
    result = asyncio.run(stoppable_run(run.runner, run.task))
    return _found(screen, run, result, listener)


def replay_until_command(screen: Screen, run: ReplayedRun, *, as_json: bool) -> int:
    """Replay a part of a run, let a person talk to its team from there on, and return the exit code."""

    async def begin(listener: Listener) -> int | None:
        result = await run.runner.run(run.task)
        run.go_live()
        return _found(screen, run, result, listener) or None

    return chat_command(screen, run.runner, as_json=as_json, begin=begin)


def _listener(screen: Screen, *, as_json: bool, quiet: bool) -> Listener:
    if as_json:
        return JsonLines()
    return partial(_tell_beside, screen) if quiet else Conversation(screen)


def _tell_beside(screen: Screen, event: Event) -> None:
    tell_beside(screen, event)


def _found(screen: Screen, run: ReplayedRun, result: RunResult, listener: Listener) -> int:
    """Tell what a replay has found; returns the exit code."""
    tell_what_stopped(screen, result)
    if result.ending in (RunEnding.FAILED, RunEnding.STOPPED):
        return result.exit_code
    found = run.found(result)
    if isinstance(listener, JsonLines):
        listener(found)
    else:
        _print_replayed(screen, found)
    return 0 if found.difference is None else _DIFFERS


def _print_replayed(screen: Screen, found: Replayed) -> None:
    for each in found.changed:
        times = "" if each.times == 1 else f" {each.times} times"
        screen.notice(
            "note", f"{each.agent} has asked otherwise than then{times} ({each.kind.replace('_', ' ')})"
        )
    screen.text("")
    blocks = f"{found.blocks} call{'' if found.blocks == 1 else 's'} of code"
    if found.difference is None:
        screen.text("── as recorded ", "bold green", end="")
        so_far = "" if found.is_whole else " · as far as it went"
        screen.text(f"· {blocks} · {found.answered} answers from the journal{so_far}", "dim")
        return
    screen.text("── not as recorded ", "bold red", end="")
    screen.text(f"· after {blocks} as recorded", "dim")
    screen.quote(found.difference, "diff")


_DAY = 24 * 60 * 60
_MAX_TASK = 60
"""Characters of a task in a list."""
_STYLES = {
    RunState.RUNNING: "bold cyan",
    RunState.ACCEPTED: "green",
    RunState.NOT_ACCEPTED: "yellow",
    RunState.STOPPED: "yellow",
    RunState.PARKED: "bold yellow",
}


@dataclass(frozen=True)
class Wanted:
    """Which runs are listed.

    Attributes:
        states: What may have become of them; any if empty.
        task: What their task has in it, whatever the case.
        older_than: Days for which they have not gone on.
        beyond: Those that do not fit into this size with all that came after them, such as ``2GB``.
    """

    states: Sequence[str] = ()
    task: str | None = None
    older_than: float | None = None
    beyond: str | None = None

    def of(self, directory: Path) -> Iterator[KeptRun]:
        """The runs in a directory, the last first.

        Raises:
            SettingError: If no run can be meant.
        """
        states, size = [_state(name) for name in self.states], _size(self.beyond)
        runs = map(KeptRun.read, runs_in(directory))
        if size is not None:
            # all of them take up space, whichever are wanted
            runs = beyond(runs, size)
        now = time.time()
        for run in runs:
            if (
                (not states or run.state in states)
                and (self.task is None or self.task.casefold() in run.task.casefold())
                and (self.older_than is None or now - run.changed > self.older_than * _DAY)
            ):
                yield run


def runs_command(screen: Screen, directory: Path, wanted: Wanted, *, prune: bool, as_json: bool) -> int:
    """List the runs that are kept in a directory, remove those listed if they are to be pruned, and return the exit code."""
    if prune and wanted == Wanted():
        raise SettingError(
            "--prune removes the runs that are listed: say which, such as by --older-than 30 or --beyond 2GB"
        )
    is_empty = True
    for run in wanted.of(directory):
        is_empty = False
        told = _as_json(run) if as_json else None
        size = run.size if prune else 0
        removed = run.remove() if prune else None
        if told is not None:
            print_json(told | ({} if removed is None else {"removed": removed}))
            continue
        _show_run(screen, run)
        if removed is not None:
            screen.text(f"  removed, {size_of(size)}" if removed else "  kept: it is running", "dim")
    if is_empty and not as_json:
        screen.notice("note", f"there are no such runs in {directory}")
    return 0


def _show_run(screen: Screen, run: KeptRun) -> None:
    about, result = run.about, run.result
    screen.text(f"{readable(run.id):20}  {run.state.value:12}", _STYLES.get(run.state, "red"), end="")
    if about is None or run.problem is not None:
        screen.text(f"  {readable(run.problem or '')}", "dim")
        return
    cells = [f"{'':>8}", f"{'':>14}"]
    seconds = time.time() - about.began if run.state is RunState.RUNNING else None
    if result is not None:
        tokens, seconds = result.usage.prompt_tokens + result.usage.completion_tokens, result.seconds
        cells = [
            f"{result.steps} step{' ' if result.steps == 1 else 's'}".rjust(8),
            f"{tokens:,} tokens".rjust(14),
        ]
        if result.cost is not None:
            cells.append(result.cost.to_text())
    cells.append(f"{'' if seconds is None else f'{seconds:,.1f} s':>10}")
    screen.text(f"  {'  '.join(cells)}", "dim", end="")
    screen.text(f"  {cut(' '.join((run.task or about.config).split()), _MAX_TASK)}")


def _as_json(run: KeptRun) -> dict[str, Any]:
    about, result = run.about, run.result
    return {
        "id": run.id,
        "path": str(run.directory.path),
        "state": run.state.value,
        "task": run.task if about else None,
        "config": None if about is None else about.config,
        "began": None if about is None else about.began,
        "seconds": None if result is None else round(result.seconds, 3),
        "steps": None if result is None else result.steps,
        "messages": None if result is None else result.messages,
        "usage": None if result is None else asdict(result.usage),
        "cost": None if result is None or result.cost is None else asdict(result.cost),
        "exit_code": None if result is None else result.exit_code,
        "stop_reason": None if result is None else result.stop_reason,
        "problem": run.problem,
    }


def _state(name: str) -> RunState:
    try:
        return RunState(name.replace("-", " ").replace("_", " "))
    except ValueError:
        known = ", ".join(state.value.replace(" ", "-") for state in RunState)
        raise SettingError(f"no run can be {name!r}: --state knows {known}") from None


def _size(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return TypeAdapter(ByteSize).validate_python(text)
    except ValidationError:
        raise SettingError(f"{text!r} is no size: write it as 500MB or 2GB") from None
