"""The live table of a batch on a terminal: how far it is, and what its tasks are doing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from codeact_team.batch.results import BatchBegan, Doing, TaskBegan, TaskEnded, TaskOutcome, TaskProgressed
from codeact_team.text.visibility import visible

_MOST_ROWS = 10
"""Running tasks that are shown, the oldest first; fewer on a small terminal."""
_MAX_ID = 40
"""Cells."""


class Tally:
    """Counts the results of a batch, those from before included."""

    def __init__(self, began: BatchBegan) -> None:
        self._outcomes = Counter[str](began.outcomes)
        self._right, self._wrong = began.right, began.wrong

    def add(self, ended: TaskEnded) -> None:
        """Count a result."""
        result = ended.result
        self._outcomes[result.outcome] += 1
        self._right += result.correct is True
        self._wrong += result.correct is False

    def counts(self) -> Mapping[str, int]:
        """Numbers of right and wrong answers, or else of accepted tasks; and of all other outcomes."""
        counts = {"right": self._right, "wrong": self._wrong}
        if not any(counts.values()):
            counts = {TaskOutcome.ACCEPTED.value: self._outcomes[TaskOutcome.ACCEPTED]}
        others = {name: count for name, count in self._outcomes.items() if name != TaskOutcome.ACCEPTED}
        return counts | dict(sorted(others.items()))


@dataclass
class _Row:
    began: float
    doing: str = Doing.STARTING
    calls: int = 0


@dataclass
class BatchTable:
    """Renders the running tasks above the bar of all.

    Attributes:
        done: How many runs have ended.
        jobs: The number of all runs.
    """

    done: int
    jobs: int
    _rows: dict[tuple[str, int], _Row] = field(default_factory=dict[tuple[str, int], _Row])

    def __post_init__(self) -> None:
        self._bar = Progress(
            TextColumn("{task.completed}/{task.total}", style="bold"),
            BarColumn(bar_width=None, table_column=Column(ratio=1)),
            TextColumn("{task.description}", style="dim"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            expand=True,
        )
        self._task = self._bar.add_task("", total=self.jobs, completed=self.done)

    def begin(self, event: TaskBegan) -> None:
        """Add a running task."""
        self._rows[event.id, event.epoch] = _Row(time.monotonic())

    def progress(self, event: TaskProgressed) -> None:
        """Note what a running task does."""
        if (row := self._rows.get((event.id, event.epoch))) is not None:
            row.doing = str(event.doing)
            row.calls += event.doing == Doing.ASKING

    def end(self, event: TaskEnded, described: str) -> None:
        """Remove a task that has ended."""
        self._rows.pop((event.result.id, event.result.epoch), None)
        self.done += 1
        self._bar.update(self._task, completed=self.done, description=described)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        # a copy: this is called in the thread that refreshes the terminal
        rows = list(self._rows.items())
        shown = rows[: max(1, min(_MOST_ROWS, options.max_height // 2 - 2))]
        table = Table.grid(
            Column(no_wrap=True, overflow="ellipsis", max_width=_MAX_ID),
            Column(no_wrap=True, overflow="ellipsis"),
            Column(justify="right", no_wrap=True),
            Column(justify="right", no_wrap=True),
            padding=(0, 2, 0, 0),
        )
        for (task_id, epoch), row in shown:
            calls = f"call {row.calls}" if row.calls else ""
            table.add_row(named(task_id, epoch), row.doing, calls, _clock(time.monotonic() - row.began))
        if len(rows) > len(shown):
            table.add_row(f"and {len(rows) - len(shown)} more", "", "", "")
        yield table
        yield self._bar


def named(task_id: str, epoch: int) -> str:
    """A run of a task, as it is printed."""
    name = " ".join(visible(task_id).split())
    return name if epoch == 1 else f"{name} #{epoch}"


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
