"""``codeact-team batch``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Self

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from codeact_team.batch.batch import Batch
from codeact_team.batch.results import (
    BatchBegan,
    BatchNoted,
    BatchResult,
    JobResult,
    LineBroken,
    TaskEnded,
    TaskOutcome,
    TaskRetried,
)
from codeact_team.batch.settings import BatchSettings
from codeact_team.cli.conversation import counted
from codeact_team.cli.json_lines import JsonLines
from codeact_team.cli.screen import Screen
from codeact_team.cli.signals import ENDED_BY, handling_signals
from codeact_team.core.effects import Event, Listener
from codeact_team.core.visibility import cut, visible

_MARKS = {
    TaskOutcome.ACCEPTED: ("✓", "green"),
    TaskOutcome.NOT_ACCEPTED: ("✗", "yellow"),
    TaskOutcome.PARKED: ("…", "cyan"),
}
_FAILED = ("✗", "red")
_MAX_REASON = 200
"""Characters."""


def batch_command(
    screen: Screen, config: str, tasks: str, out: Path, settings: BatchSettings, *, as_json: bool
) -> int:
    """Run a batch, and print its events and its result; returns the exit code."""
    with _Progress(screen) as progress:
        listener: Listener = JsonLines() if as_json else progress
        result = asyncio.run(_stoppable(Batch(config, tasks, out, settings, listeners=[listener])))
    if result.signal is not None:
        screen.notice("error", ENDED_BY[result.signal])
    return result.exit_code


async def _stoppable(batch: Batch) -> BatchResult:
    with handling_signals(batch.stop):
        return await batch.run()


class _Progress:
    """A listener that prints a line for each result; on a terminal a progress bar, and lines for failures only."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._counts = dict.fromkeys(("accepted", "failed"), 0)
        self._done = self._all = 0
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __call__(self, event: Event) -> None:
        notice = self._screen.notice
        match event:
            case LineBroken():
                notice("error", f"line {event.line} is left out: {cut(event.problem, _MAX_REASON)}")
            case BatchNoted():
                notice("warning" if event.level == "warning" else "note", event.text)
            case TaskRetried():
                when = f" in {event.seconds:g} s" if event.seconds else ""
                name, reason = _named(event.id, event.epoch), cut(event.reason, _MAX_REASON)
                notice("note", f"{name} is tried again{when}: {reason}", again=True)
            case BatchBegan():
                self._begin(event)
            case TaskEnded():
                self._end(event)
            case BatchResult():
                self.__exit__()
                _print_summary(self._screen, event)
            case _:
                pass

    def _begin(self, event: BatchBegan) -> None:
        self._done, self._all = event.done, event.jobs
        if event.done:
            self._screen.notice("note", f"{event.done} of {event.jobs} have their result from before")
        if event.done == event.jobs:
            return
        self._bar = self._screen.bar(
            TextColumn("{task.completed}/{task.total}", style="bold"),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            TextColumn("{task.description}", style="dim"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        )
        if self._bar is not None:
            self._task = self._bar.add_task("", total=event.jobs, completed=event.done)

    def _end(self, event: TaskEnded) -> None:
        result = event.result
        self._done += 1
        self._counts["accepted"] += result.outcome is TaskOutcome.ACCEPTED
        self._counts["failed"] += result.outcome is TaskOutcome.FAILED
        mark, style = _MARKS.get(result.outcome, _FAILED)
        described = " · ".join([_named(result.id, result.epoch), *_described(result)])
        if self._bar is None:
            self._screen.text(f"{self._done}/{self._all} {mark} {described}")
            return
        if not result.is_final or result.correct is False:
            self._screen.text(f"{mark} {described}", style)
        parts = [f"{count} {what}" for what, count in self._counts.items() if count or what == "accepted"]
        parts.append(f"{event.tokens:,} tokens")
        if event.cost is not None:
            parts.append(f"{event.cost:,.4f}")
        self._bar.update(self._task, completed=self._done, description=" · ".join(parts))


def _print_summary(screen: Screen, result: BatchResult) -> None:
    outcomes = [f"{count} {outcome}" for outcome, count in sorted(result.outcomes.items())]
    if result.left:
        outcomes.append(f"{result.left} not done")
    if result.broken:
        outcomes.append(f"{counted(result.broken, 'broken line')} left out")
    screen.text(" · ".join(outcomes), "bold")
    for what, share in (("right answers", result.accuracy), ("accepted", result.acceptance)):
        if share is not None:
            interval = f"95 % interval {share.low:.1%} to {share.high:.1%}"
            screen.text(f"{what}: {share.value:.1%} ({interval}, {counted(share.tasks, 'task')})")
    if result.pass_at:
        screen.text(" · ".join(f"pass@{k} {value:.1%}" for k, value in result.pass_at.items()))
    cost = "" if result.cost is None else f" · {result.cost:,.4f} {result.currency}"
    screen.text(f"{result.tokens:,} tokens{cost}")
    screen.text(f"results: {result.directory}/results.jsonl")
    if result.left and result.signal is None and result.stop_reason is not None:
        screen.notice("warning", result.stop_reason)
    if result.left:
        screen.notice("note", "the same command goes on with what is not done")
    elif result.transient:
        screen.notice("note", "the same command tries again what has failed")
    if result.outcomes.get(TaskOutcome.PARKED):
        run = f"{result.directory}/runs/ID"
        screen.notice("note", f"to answer what is parked: codeact-team answer {run}; then the same command")


def _named(task_id: str, epoch: int) -> str:
    return visible(task_id) if epoch == 1 else f"{visible(task_id)} #{epoch}"


def _described(result: JobResult) -> list[str]:
    parts = [result.outcome.value]
    if result.correct is not None:
        parts.append("right" if result.correct else "wrong")
    if result.steps:
        parts.append(counted(result.steps, "step"))
    if (reason := result.error or result.objection) is not None:
        parts.append(cut(" ".join(reason.split()), _MAX_REASON))
    return parts
