"""The live table of a batch on a terminal: how far it is, and what its tasks are doing."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from codeact_team.batch.results import BatchBegan, Doing, TaskBegan, TaskEnded, TaskProgressed
from codeact_team.journal.result import RunEnding
from codeact_team.text.visibility import visible

_MOST_ROWS = 10
"""Running tasks that are shown, the oldest first; fewer on a small terminal."""
_MAX_ID = 40
"""Cells."""


class Tally:
    """Counts the results of a batch, those from before included."""

    def __init__(self, began: BatchBegan) -> None:
        self._outcomes = Counter[str](began.outcomes)
        self._reviewed, self._right, self._wrong = began.reviewed, began.right, began.wrong

    def add(self, ended: TaskEnded) -> None:
        """Count a result."""
        result = ended.result
        self._outcomes[result.outcome] += 1
        self._reviewed += result.is_reviewed
        self._right += result.correct is True
        self._wrong += result.correct is False

    def counts(self) -> Sequence[str]:
        """Numbers of outcomes and reviews, and of right and wrong answers where they are known."""
        known = {"right": self._right, "wrong": self._wrong} if self._right or self._wrong else {}
        judged = [f"{count} {what}" for what, count in known.items()]
        return [*outcomes_in_words(self._outcomes, self._reviewed), *judged]


def outcomes_in_words(outcomes: Mapping[str, int], reviewed: int) -> Sequence[str]:
    """The numbers of runs with each outcome and, where some have come to an end, of those that were reviewed."""
    counts = [f"{count} {outcome}" for outcome, count in sorted(outcomes.items())]
    has_final = any(outcomes.get(ending) for ending in RunEnding if ending.is_final)
    return [*counts, f"{reviewed} reviewed"] if has_final else counts


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
