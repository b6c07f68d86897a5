"""``codeact-team batch``."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column

from codeact_team.batch.batch import Batch
from codeact_team.batch.results import (
    BatchBegan,
    BatchNoted,
    BatchResult,
    LineBroken,
    Share,
    TaskEnded,
    TaskOutcome,
    TaskResult,
    TaskRetried,
)
from codeact_team.batch.settings import BatchSettings
from codeact_team.cli.json_lines import print_json
from codeact_team.cli.screen import Level, Screen
from codeact_team.cli.signals import ENDED_BY, handling_signals
from codeact_team.core.effects import Event, Listener
from codeact_team.core.events import VERSION, dump
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
    listener: Listener = _JsonLines() if as_json else _Progress(screen)
    try:
        result = asyncio.run(_stoppable(Batch(config, tasks, out, settings, listeners=[listener])))
    finally:
        if isinstance(listener, _Progress):
            listener.close()
    if result.signal is not None:
        screen.notice("error", ENDED_BY[result.signal])
    return result.exit_code


async def _stoppable(batch: Batch) -> BatchResult:
    with handling_signals(batch.stop):
        return await batch.run()


class _JsonLines:
    """A listener that prints the version of the lines, then each event."""

    def __init__(self) -> None:
        self._begun = False

    def __call__(self, event: Event) -> None:
        if not self._begun:
            self._begun = True
            print_json({"type": "format", "source": "codeact-team", "version": VERSION})
        line = dump(event)
        if isinstance(event, BatchResult):
            line |= {"left": event.left, "exit_code": event.exit_code}
        print_json(line)


class _Progress:
    """A listener that prints a line for each result; on a terminal a progress bar, and lines for failures only."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._counts = dict.fromkeys(("accepted", "failed"), 0)
        self._done = self._all = 0
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __call__(self, event: Event) -> None:
        match event:
            case LineBroken():
                self._screen.notice(
                    "error", f"line {event.line} is left out: {cut(event.problem, _MAX_REASON)}"
                )
            case BatchNoted():
                level: Level = "warning" if event.level == "warning" else "note"
                self._screen.notice(level, event.text)
            case TaskRetried():
                when = f" in {event.seconds:g} s" if event.seconds else ""
                text = (
                    f"{_named(event.id, event.epoch)} is tried again{when}: {cut(event.reason, _MAX_REASON)}"
                )
                self._screen.notice("note", text, again=True)
            case BatchBegan():
                self._begin(event)
            case TaskEnded():
                self._end(event)
            case BatchResult():
                self.close()
                self._summary(event)
            case _:
                pass

    def close(self) -> None:
        """Remove the progress bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _begin(self, event: BatchBegan) -> None:
        self._done, self._all = event.done, event.jobs
        if event.done:
            self._screen.notice("note", f"{event.done} of {event.jobs} have their result from before")
        if event.done == event.jobs:
            return
        self._bar = self._screen.bar(
            TextColumn("{task.completed}/{task.total}", style="bold"),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            TextColumn("{task.fields[said]}", style="dim"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
        )
        if self._bar is not None:
            self._task = self._bar.add_task("", total=event.jobs, completed=event.done, said="")

    def _end(self, event: TaskEnded) -> None:
        result = event.result
        self._done += 1
        self._counts["accepted"] += result.outcome is TaskOutcome.ACCEPTED
        self._counts["failed"] += result.outcome is TaskOutcome.FAILED
        mark, style = _MARKS.get(result.outcome, _FAILED)
        said = " · ".join([_named(result.id, result.epoch), *_described(result)])
        if self._bar is None:
            self._screen.text(f"{self._done}/{self._all} {mark} {said}")
            return
        if not result.is_final or result.correct is False:
            self._screen.text(f"{mark} {said}", style)
        parts = [f"{count} {what}" for what, count in self._counts.items() if count or what == "accepted"]
        parts.append(f"{event.tokens:,} tokens")
        if event.cost is not None:
            parts.append(f"{event.cost:,.4f}")
        self._bar.update(self._task, completed=self._done, said=" · ".join(parts))

    def _summary(self, result: BatchResult) -> None:
        outcomes = [f"{count} {outcome}" for outcome, count in sorted(result.outcomes.items())]
        outcomes += [f"{result.left} not done"] if result.left else []
        outcomes += (
            [f"{result.broken} broken line{'s'[: result.broken - 1]} left out"] if result.broken else []
        )
        spent = [f"{result.tokens:,} tokens"]
        spent += [] if result.cost is None else [f"{result.cost:,.4f} {result.currency}"]
        self._screen.text(" · ".join(outcomes), "bold")
        for what, share in (("right answers", result.accuracy), ("accepted", result.acceptance)):
            if share is not None:
                self._screen.text(f"{what}: {_share(share)}")
        if result.pass_at:
            self._screen.text(" · ".join(f"pass@{k} {value:.1%}" for k, value in result.pass_at.items()))
        self._screen.text(" · ".join(spent))
        self._screen.text(f"results: {result.directory}/results.jsonl")
        self._show_next_steps(result)

    def _show_next_steps(self, result: BatchResult) -> None:
        if result.left and result.signal is None and result.stop_reason is not None:
            self._screen.notice("warning", result.stop_reason)
        if result.left:
            self._screen.notice("note", "the same command goes on with what is not done")
        elif result.transient:
            self._screen.notice("note", "the same command tries again what has failed")
        if result.outcomes.get(TaskOutcome.PARKED):
            run = f"{result.directory}/runs/ID"
            self._screen.notice(
                "note", f"to answer what is parked: codeact-team answer {run}; then the same command"
            )


def _named(task_id: str, epoch: int) -> str:
    return visible(task_id) if epoch == 1 else f"{visible(task_id)} #{epoch}"


def _described(result: TaskResult) -> list[str]:
    parts = [result.outcome.value]
    if result.correct is not None:
        parts.append("right" if result.correct else "wrong")
    if result.steps:
        parts.append(f"{result.steps} step" + ("s" if result.steps > 1 else ""))
    if (reason := result.error or result.objection) is not None:
        parts.append(cut(" ".join(reason.split()), _MAX_REASON))
    return parts


def _share(share: Share) -> str:
    tasks = f"{share.tasks} task" + ("s" if share.tasks > 1 else "")
    return f"{share.value:.1%} (95 % interval {share.low:.1%} to {share.high:.1%}, {tasks})"
