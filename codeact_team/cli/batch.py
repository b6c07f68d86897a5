"""``codeact-team batch``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from codeact_team.batch.batch import Batch
from codeact_team.batch.evaluation import wrong_answer
from codeact_team.batch.results import (
    UNCHECKED,
    BatchBegan,
    BatchNoted,
    BatchResult,
    JobResult,
    LineBroken,
    TaskBegan,
    TaskEnded,
    TaskProgressed,
    TaskRetried,
    WrongAnswer,
)
from codeact_team.batch.settings import BatchSettings
from codeact_team.batch.tasks import EachFile
from codeact_team.cli.batch_table import BatchTable, Tally, named, outcomes_in_words
from codeact_team.cli.json_lines import JsonLines
from codeact_team.cli.notices import missing_in_words
from codeact_team.cli.screen import Screen
from codeact_team.cli.signals import ENDED_BY, handling_signals
from codeact_team.core.accounting import tokens_in_words
from codeact_team.core.effects import Event, Listener
from codeact_team.journal.result import MOST_MISSING, RunEnding
from codeact_team.text.amounts import counted
from codeact_team.text.visibility import cut

_MARKS: Mapping[str, tuple[str, str]] = {
    RunEnding.ACCEPTED: ("✓", "green"),
    RunEnding.ANSWERED: ("✓", "green"),
    RunEnding.NOT_ACCEPTED: ("✗", "yellow"),
    RunEnding.PARKED: ("…", "cyan"),
}
_WRONG = ("✗", "yellow")
_FAILED = ("!", "red")
_MAX_REASON = 300
"""Characters."""
_MOST_LINES = 3
"""Lines that are named if many are left out for the same reason."""


def batch_command(
    screen: Screen, config: str, tasks: str | EachFile, out: Path, settings: BatchSettings, *, as_json: bool
) -> int:
    """Run a batch, and print its events and its result; returns the exit code."""
    with _Progress(screen, tasks if isinstance(tasks, str) else tasks.pattern) as progress:
        listener: Listener = JsonLines() if as_json else progress
        result = asyncio.run(_stoppable(Batch(config, tasks, out, settings, listeners=[listener])))
    if result.signal is not None:
        screen.notice("error", ENDED_BY[result.signal])
    return result.exit_code


async def _stoppable(batch: Batch) -> BatchResult:
    with handling_signals(batch.stop):
        return await batch.run()


class _Progress:
    """A listener that prints a line for each result; on a terminal a live table, and lines only for results that are not right.

    Args:
        tasks: The name of the tasks file, or the pattern of the files.
    """

    def __init__(self, screen: Screen, tasks: str) -> None:
        self._screen = screen
        self._tasks = "line {}" if tasks == "-" else f"{tasks}:{{}}"
        self._broken: dict[str, list[int]] = {}
        """The lines that are left out, by the reason."""
        self._reasons: dict[str, str] = {}
        """By the reason of a failure, the first task that had it."""
        self._missing_hosts: dict[str, None] = {}
        """The entries of ``egress`` that would allow what code was denied."""
        self._within = ExitStack()
        self._table: BatchTable | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._tell_broken()
        self._within.close()

    def __call__(self, event: Event) -> None:
        notice = self._screen.notice
        if not isinstance(event, LineBroken):
            self._tell_broken()
        match event:
            case LineBroken():
                self._broken.setdefault(event.problem, []).append(event.line)
            case BatchNoted():
                notice("warning" if event.level == "warning" else "note", event.text)
            case TaskRetried():
                when = f" in {event.seconds:g} s" if event.seconds else ""
                name = named(event.id, event.epoch)
                notice("note", f"{name} is tried again{when}: {self._told(event.reason, name)}", again=True)
            case BatchBegan():
                self._begin(event)
            case TaskBegan() if self._table is not None:
                self._table.begin(event)
            case TaskProgressed() if self._table is not None:
                self._table.progress(event)
            case TaskEnded():
                self._end(event)
            case BatchResult():
                self._finish(event)
            case _:
                pass

    def _told(self, reason: str, name: str) -> str:
        """The reason of a failure in a line, and the next time only who had it before."""
        line = cut(" ".join(reason.split()), _MAX_REASON)
        first = self._reasons.setdefault(line, name)
        return line if first == name else f"as {first}"

    def _tell_broken(self) -> None:
        """Tell which lines are left out; the same reason only once."""
        broken, self._broken = self._broken, {}
        for problem, lines in broken.items():
            places = ", ".join(self._tasks.format(line) for line in lines[:_MOST_LINES])
            more = f" and {len(lines) - _MOST_LINES} more" if lines[_MOST_LINES:] else ""
            are = "is" if len(lines) == 1 else "are"
            self._screen.notice("error", f"{places}{more} {are} left out: {cut(problem, _MAX_REASON)}")

    def _begin(self, event: BatchBegan) -> None:
        self._tally = Tally(event)
        if event.done:
            self._screen.notice("note", f"{event.done} of {event.jobs} have a result already")
        self._table = BatchTable(event.done, event.jobs)
        if event.done < event.jobs:
            self._within.enter_context(self._screen.live(self._table))

    def _finish(self, event: BatchResult) -> None:
        self._within.close()
        _print_summary(self._screen, event)
        if self._missing_hosts:
            self._screen.notice("note", missing_in_words([*self._missing_hosts][:MOST_MISSING]))

    def _end(self, event: TaskEnded) -> None:
        result = event.result
        self._tally.add(event)
        for entry in result.missing_hosts if len(self._missing_hosts) < MOST_MISSING else ():
            self._missing_hosts[entry] = None
        parts = [*self._tally.counts(), f"{event.tokens:,} tokens"]
        if event.cost is not None:
            parts.append(f"{event.cost:,.4f}")
        assert self._table is not None, "the batch has begun"
        self._table.end(event, " · ".join(parts))
        mark, style = _WRONG if result.correct is False else _MARKS.get(result.outcome, _FAILED)
        name = named(result.id, result.epoch)
        described = " · ".join([name, *_described(result)])
        if result.problem is not None:
            described += f" · {self._told(result.problem, name)}"
        if not self._screen.renders:
            self._screen.text(f"{self._table.done}/{self._table.jobs} {mark} {described}")
        elif not result.is_final or result.correct is False:
            self._screen.text(f"{mark} {described}", style)


def _counts(result: BatchResult) -> list[str]:
    outcomes = [*outcomes_in_words(result.outcomes, result.reviewed)]
    if result.left:
        outcomes.append(f"{result.left} not done")
    if result.broken:
        outcomes.append(f"{counted(result.broken, 'broken line')} left out")
    return outcomes


def _print_summary(screen: Screen, result: BatchResult) -> None:
    screen.text(" · ".join(_counts(result)) or "nothing to do", "bold")
    for what, share in (("right answers", result.accuracy), ("accepted or answered", result.acceptance)):
        if share is not None:
            interval = f"95 % interval {share.low:.1%} to {share.high:.1%}"
            screen.text(f"{what}: {share.value:.1%} ({interval}, {counted(share.tasks, 'task')})")
    if result.pass_at:
        screen.text(" · ".join(f"pass@{k} {value:.1%}" for k, value in result.pass_at.items()))
    _print_wrong_answers(screen, result)
    cost = "" if result.cost is None else f" · {result.cost:,.4f} {result.currency}"
    screen.text(f"{tokens_in_words(result.tokens, is_estimated=result.is_estimated)}{cost}")
    screen.text(f"results: {result.directory}/results.jsonl")
    if result.signal is None and result.stop_reason is not None:
        screen.notice("error" if result.is_refused else "warning", result.stop_reason)
    if result.left:
        screen.notice("note", "to go on with the rest: the same command again")
    elif result.transient or result.outcomes.get(RunEnding.FAILED) or result.outcomes.get(UNCHECKED):
        screen.notice("note", "to try the failed ones again: the same command again")
    if result.outcomes.get(RunEnding.PARKED):
        run = f"{result.directory}/runs/ID"
        screen.notice(
            "note", f"to answer a parked task: codeact-team answer {run}; then the same command again"
        )


def _print_wrong_answers(screen: Screen, result: BatchResult) -> None:
    if not result.wrong:
        return
    screen.text("wrong answers:")
    for wrong in result.wrong_answers:
        screen.text(f"  {named(wrong.id, wrong.epoch)}: {_compared(wrong)}")
    if (more := result.wrong - len(result.wrong_answers)) > 0:
        screen.text(f'  and {more} more, with "correct": false in the results')


def _compared(wrong: WrongAnswer) -> str:
    """A wrong answer with the expected one."""
    parts = [f"expected {wrong.expected}"] if wrong.expected is not None else []
    parts.append("no answer" if wrong.answer is None else f"given {wrong.answer}")
    if wrong.check is not None:
        parts.append(wrong.check)
    return ", ".join(parts)


def _described(result: JobResult) -> list[str]:
    parts = [str(result.outcome)]
    if result.correct is not None:
        parts.append("right" if result.correct else f"wrong: {_compared(wrong_answer(result))}")
    if result.steps:
        parts.append(counted(result.steps, "step"))
    return parts
