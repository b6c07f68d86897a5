"""The commands ``answer``, ``replay`` and ``runs``."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autogen_agentchat.messages import BaseChatMessage
from pydantic import ByteSize, TypeAdapter, ValidationError

from codeact_team.cli.chat import chat_command
from codeact_team.cli.conversation import listener_of
from codeact_team.cli.json_lines import JsonLines, print_json
from codeact_team.cli.notices import print_notices
from codeact_team.cli.options import days_ago
from codeact_team.cli.prompts import decode
from codeact_team.cli.run import command, print_end, stoppable
from codeact_team.cli.screen import Screen
from codeact_team.core.accounting import tokens_in_words
from codeact_team.core.effects import Event, Listener
from codeact_team.core.events import MessageSent, OpenQuestion
from codeact_team.core.sandbox_description import without_note
from codeact_team.errors import SettingError
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.result import RunEnding, RunResult
from codeact_team.journal.run_directory import RunDirectory, find_run, runs_in
from codeact_team.runs.foreign_runs import options_of
from codeact_team.runs.kept_runs import KeptRun, ParkedRun, RunState, beyond
from codeact_team.runs.replaying import ReplayedRun, ReplayedTeam
from codeact_team.text.amounts import counted, size_of
from codeact_team.text.visibility import cut, readable
from codeact_team.tools.approvals import AskedQuestion

_DIFFERS = 1
"""The exit code of a replay."""
_STATE = 12
"""Characters of a state in a list."""
_MIN_TASK = 20
"""Characters of a task below which it gets a line of its own."""
_MAX_TASK = 60
"""Characters of a task in a list."""
_STYLES = {
    RunState.RUNNING: "bold cyan",
    RunState.ACCEPTED: "green",
    RunState.ANSWERED: "green",
    RunState.NOT_ACCEPTED: "yellow",
    RunState.STOPPED: "yellow",
    RunState.PARKED: "bold yellow",
    RunState.READY: "bold yellow",
}


def answer_command(
    screen: Screen,
    directory: RunDirectory,
    words: Sequence[str],
    number: int | None,
    *,
    every: bool,
    as_json: bool,
) -> int:
    """Answer a question of a parked run, or ``every`` one; show the open ones where there are no ``words``. The exit code."""
    run = ParkedRun(directory)
    if every and number is not None:
        raise SettingError("--all answers every question: leave --question out")
    if words:
        text = " ".join(words)
        if text == "-":
            text = decode(sys.stdin.buffer.read(), "the answer from standard input").removesuffix("\n")
        for one in run.answerable if every else [number]:
            question = run.answer(text, one)
            if as_json:
                print_json({"answered": question.n, "key": question.key, "open": [*run.numbers]})
            else:
                screen.text(f"✓ question {question.n} of {question.agent} is answered", "green")
    else:
        for question in run.open if number is None else [run.question(number)]:
            if as_json:
                print_json(asdict(question))
            else:
                _print_question(screen, question, directory)
    if not as_json:
        screen.notice("note", _next_step(run, directory))
    return 0


def _print_question(screen: Screen, question: OpenQuestion, directory: RunDirectory) -> None:
    screen.text(f"── question {question.n}", "bold yellow")
    if question.kind != AskedQuestion.kind:
        # the prompt alone says little
        sent = (event.message for event in RecordedRun(directory).events() if isinstance(event, MessageSent))
        if messages := [message for message in sent if isinstance(message, BaseChatMessage)]:
            screen.text(f"{messages[-1].source} has said:", "dim")
            screen.quote(without_note(messages[-1]).to_text(), None)
    screen.text(question.text)
    if question.is_lost:
        screen.notice(
            "warning",
            f"no answer reaches question {question.n} any more: what asked it was interrupted, and is not repeated",
        )


def _next_step(run: ParkedRun, directory: RunDirectory) -> str:
    path = directory.path
    if not run.answerable:
        recorded = RecordedRun(directory)
        if recorded.about.is_of_program:
            return f"to go on, {recorded.about.starting_again}"
        return f"to go on: {command('resume', str(path), *options_of(recorded))}"
    ways = "yes, no (a reason may follow) or always"
    if all(run.question(number).kind != AskedQuestion.kind for number in run.answerable):
        ways = "a text, or - to read it from standard input"
    which = ("--question", str(run.answerable[0])) if run.open[1:] else ()
    together = "; --all in place of --question answers all" if run.answerable[1:] else ""
    return f"to answer: {command('answer', str(path), *which)} ANSWER, which is {ways}{together}"


def replay_command(screen: Screen, run: ReplayedRun, *, as_json: bool, quiet: bool) -> int:
    """Replay a run, print what happens and what differs, and return the exit code."""
    if as_json and quiet:
        raise SettingError("--json prints all events, and --quiet only the finding: leave one of them out")

    def print_only_notices(event: Event) -> None:
        print_notices(screen, event)

    listener = print_only_notices if quiet else listener_of(screen, as_json=as_json)
    run.runner.dispatcher.listen(listener, essential=True)
    result = asyncio.run(stoppable(run.runner, run.run()))
    return _print_findings(screen, run, result, listener)


def replay_until_command(screen: Screen, run: ReplayedRun, *, as_json: bool) -> int:
    """Replay a part of a run, let a person talk to its team from there on, and return the exit code."""
    if not isinstance(run, ReplayedTeam):
        raise SettingError(
            "--until cannot go on with this run in a chat, as only its program knows what comes next: leave --until out"
        )

    async def begin(listener: Listener) -> int | None:
        result = await run.again()
        run.go_live()
        return _print_findings(screen, run, result, listener) or None

    return chat_command(screen, run.chat, as_json=as_json, begin=begin)


def _print_findings(screen: Screen, run: ReplayedRun, result: RunResult, listener: Listener) -> int:
    """Print what a replay has found; returns the exit code."""
    print_end(screen, result)
    if result.ending in (RunEnding.FAILED, RunEnding.STOPPED):
        return result.exit_code
    found = run.found(result)
    code = 0 if found.difference is None else _DIFFERS
    if isinstance(listener, JsonLines):
        listener(found)
        return code
    for each in found.changed:
        times = "" if each.times == 1 else f" {each.times} times"
        screen.notice(
            "note",
            f"{each.agent} has sent another request than was recorded{times} ({each.kind.replace('_', ' ')})",
        )
    screen.text("")
    blocks = counted(found.blocks, "call") + " of code"
    if found.difference is None:
        screen.text("── as recorded ", "bold green", end="")
        so_far = "" if found.is_whole else " · as far as it went"
        screen.text(f"· {blocks} · {found.answered} answers from the journal{so_far}", "dim")
    else:
        screen.text("── not as recorded ", "bold red", end="")
        screen.text(f"· after {blocks} as recorded", "dim")
        screen.quote(found.difference, "diff")
    return code


@dataclass(frozen=True)
class Selection:
    """Which runs are listed.

    Attributes:
        states: The states that they may be in; any if empty.
        task: A text in their task, in upper or lower case.
        older_than: Days for which they have not gone on.
        beyond: A size such as ``2GB``, for those that do not fit into it with all later ones.
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
        states = [_state(name) for name in self.states]
        runs = map(KeptRun.read, runs_in(directory))
        if self.beyond is not None:
            try:
                size = TypeAdapter(ByteSize).validate_python(self.beyond)
            except ValidationError:
                raise SettingError(f"{self.beyond!r} is not a size: write it as 500MB or 2GB") from None
            # all of them take up space, also those that are not selected
            runs = beyond(runs, size)
        for run in runs:
            if (
                (not states or run.state in states)
                and (self.task is None or self.task.casefold() in run.task.casefold())
                and (self.older_than is None or run.changed < days_ago(self.older_than))
            ):
                yield run


def _state(name: str) -> RunState:
    try:
        return RunState(name.replace("-", " ").replace("_", " "))
    except ValueError:
        known = ", ".join(state.value.replace(" ", "-") for state in RunState)
        raise SettingError(f"no run can be {name!r}: --state knows {known}") from None


def path_command(screen: Screen, name: str, directory: Path, selection: Selection, *, others: bool) -> int:
    """Print the directory of a run for a script, and return the exit code; ``others`` says whether more is asked for."""
    if others or selection != Selection():
        raise SettingError("--path prints the directory of one run: leave the other options out")
    screen.text(str(find_run(name, directory).path))
    return 0


def runs_command(screen: Screen, directory: Path, selection: Selection, *, prune: bool, as_json: bool) -> int:
    """List the selected runs of a directory, remove them if they are to be pruned, and return the exit code."""
    if prune and selection == Selection():
        raise SettingError(
            "--prune removes the runs that are listed: say which, such as by --older-than 30 or --beyond 2GB"
        )
    is_empty = True
    for run in selection.of(directory):
        is_empty = False
        line = _as_json(run) if as_json else {}
        size = run.size if prune else 0
        removed = run.remove() if prune else None
        if as_json:
            print_json(line if removed is None else {**line, "removed": removed})
            continue
        _print_run(screen, run)
        if removed is not None:
            screen.text(f"  removed, {size_of(size)}" if removed else "  kept: it is running", "dim")
    if is_empty and not as_json:
        screen.notice("note", f"there are no such runs in {directory}")
    return 0


def _print_run(screen: Screen, run: KeptRun) -> None:
    about, result = run.about, run.result
    screen.text(f"{readable(run.id):20}  {run.state.value:{_STATE}}", _STYLES.get(run.state, "red"), end="")
    if about is None or run.problem is not None:
        screen.text(f"  {readable(run.problem or '')}", "dim")
        return
    steps = tokens = seconds = ""
    costs: list[str] = []
    if result is not None:
        steps = f"{result.steps} step{' ' if result.steps == 1 else 's'}"
        used = result.usage.prompt_tokens + result.usage.completion_tokens
        tokens = tokens_in_words(used, is_estimated=result.is_estimated)
        seconds = f"{result.seconds:,.1f} s"
        costs = [] if result.cost is None else [result.cost.to_text()]
    elif run.state is RunState.RUNNING:
        seconds = f"{time.time() - about.began:,.1f} s"
    cells = "  ".join([f"{steps:>8}", f"{tokens:>14}", *costs, f"{seconds:>10}"])
    task = " ".join((run.task or about.config).split())
    room, before = screen.width - len(run.id) - len(cells) - _STATE - 6, f"  {cells}  "
    if not screen.renders:
        # a program reads one line for each
        room = _MAX_TASK
    elif room < _MIN_TASK:
        room = screen.width - 2
        before = f"\n  {' · '.join(filter(None, [steps.strip(), tokens, *costs, seconds]))}\n  "
    screen.text(before, "dim", end="")
    screen.text(cut(task, min(room, _MAX_TASK)), end="")
    # what a parked run waits for is told by `answer`
    if result is not None and result.ending is not RunEnding.PARKED and (why := result.problem) is not None:
        screen.text(f"\n  {cut(why, screen.width - 2)}" if screen.renders else f"  · {why}", "dim", end="")
    screen.text("")


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
        "is_estimated": None if result is None else result.is_estimated,
        "cost": None if result is None or result.cost is None else asdict(result.cost),
        "exit_code": None if result is None else result.exit_code,
        "stop_reason": None if result is None else result.stop_reason,
        "objection": None if result is None else result.objection,
        "problem": run.problem,
    }
