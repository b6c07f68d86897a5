"""Through how many files of the package one step of a run goes, how often it changes file, and how many calls it makes.

The step is the fifth of a run in which nothing else happens. ``pytest -m benchmark --workers 0 -s tests/benchmarks/test_hops.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import pytest
from rich.console import Console
from rich.table import Table
from test_recording import config

import codeact_team
from codeact_team.core.effects import Event
from codeact_team.core.events import BlockEnded
from codeact_team.journal.run_directory import find_run
from codeact_team.runs.resuming import resumed
from codeact_team.runs.run import TeamRun

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(300)]

PACKAGE = str(Path(codeact_team.__file__).parent)
STEPS, COUNTED = 8, 5


class Hops(NamedTuple):
    """What a step has taken."""

    files: int
    changes: int
    calls: int


class Counter:
    """Listens to a run, and counts the calls between the ends of two blocks, in the thread of the loop."""

    def __init__(self) -> None:
        self._ended = 0
        self._places: list[str] = []

    def listen(self, event: Event) -> None:
        if not isinstance(event, BlockEnded):
            return
        self._ended += 1
        if self._ended == COUNTED:
            sys.setprofile(self._note)
        elif self._ended == COUNTED + 1:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call" and (place := frame.f_code.co_filename).startswith(PACKAGE):
            self._places.append(place)

    @property
    def hops(self) -> Hops:
        """What was counted."""
        changes = sum(here != there for here, there in zip(self._places, self._places[1:], strict=False))
        return Hops(len({*self._places}), changes, len(self._places))


def team() -> str:
    replies = [f"```python\nx = {number}\nprint('the value is', x)\n```" for number in range(STEPS)]
    return config([*replies, "It is done."], STEPS + 1)


async def hops_of(run: TeamRun, task: str | None = "Count.") -> Hops:
    counter = Counter()
    run.dispatcher.listen(counter.listen)
    await run.run_once(task)
    return counter.hops


async def test_a_step_goes_through_few_files(tmp_path: Path) -> None:
    plain = await hops_of(TeamRun(team()))
    recorded = await hops_of(TeamRun(team(), record=tmp_path / "runs"))
    run, task = resumed(find_run("last", tmp_path / "runs"), again=True)
    answered = await hops_of(run, task)
    table = Table("a step", "files", "changes of file", "calls")
    for name, hops in {"without a record": plain, "recorded": recorded, "answered from it": answered}.items():
        table.add_row(name, *map(str, hops))
    Console(width=100).print(table)
    # three quarters of the calls of a recorded step were the journal's once
    assert recorded.calls < 3 * plain.calls
