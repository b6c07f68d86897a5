"""How long a command-line executor takes, and how much memory, beside AutoGen's in the same run.

``pytest -m benchmark --workers 0 -s tests/benchmarks``. Ratios, as absolute numbers are those of a machine and its load.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest
from benchmarks.flood import COMMAND_LINE, run
from benchmarks.timing import memory_for_a_flood, milliseconds
from rich.console import Console
from rich.table import Table

pytestmark = [pytest.mark.benchmark, pytest.mark.docker, pytest.mark.timeout(600)]

ROUNDS = 3
BLOCKS = 15
FIRST, BLOCK, STOP = "start to first result, ms", "one print block, ms", "stop, ms"
MEMORY = "memory for 200 MB of output, MiB"


async def start_and_run(executor: Any) -> None:
    await executor.start()
    await run(executor, "print()")


async def one_round(directory: Path, times: dict[str, dict[str, list[float]]]) -> None:
    executors: dict[str, Any] = {}
    for kind, make in COMMAND_LINE.items():
        (directory / kind).mkdir(parents=True)
        executors[kind] = make(work_dir=directory / kind)
        times[kind][FIRST].append(await milliseconds(start_and_run(executors[kind])))
    for number in range(BLOCKS):
        # in turns, so that a busy moment hits them all
        for kind, executor in executors.items():
            times[kind][BLOCK].append(await milliseconds(run(executor, f"print({number})")))
    for kind, executor in executors.items():
        times[kind][STOP].append(await milliseconds(executor.stop()))


@pytest.mark.filterwarnings("ignore")
async def test_command_line_executors(tmp_path: Path) -> None:
    times: dict[str, dict[str, list[float]]] = {
        kind: {FIRST: [], BLOCK: [], STOP: []} for kind in COMMAND_LINE
    }
    for number in range(ROUNDS):
        await one_round(tmp_path / str(number), times)
    rows = {
        what: {kind: median(found[what]) for kind, found in times.items()} for what in (FIRST, BLOCK, STOP)
    }
    rows[MEMORY] = {kind: memory_for_a_flood(kind) for kind in COMMAND_LINE}
    table = Table("", *COMMAND_LINE, title="command-line executors; in brackets: times AutoGen's")
    for what, row in rows.items():
        base = next(iter(row.values()))
        table.add_row(what, *(f"{value:.1f} ({value / base:.3f})" for value in row.values()))
    Console(width=140).print(table)
