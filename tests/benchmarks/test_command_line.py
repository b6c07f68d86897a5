"""How long a command-line executor takes, and how much memory, beside AutoGen's in the same run.

``pytest -m benchmark --workers 0 -s tests/benchmarks``. Ratios, as absolute numbers are those of a machine and its load.
"""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from benchmarks.conftest import Figures
from benchmarks.flood import COMMAND_LINE, run
from benchmarks.timing import memory_for_a_flood, milliseconds
from rich.console import Console
from rich.table import Table

pytestmark = [pytest.mark.benchmark, pytest.mark.docker, pytest.mark.timeout(600)]

ROUNDS = 3
BLOCKS = 15
FIRST, STOP = "start to first result, ms", "stop, ms"
PYTHON, SHELL = "a block of Python, ms", "a block of sh, ms"
BARE = "`python3 FILE` by processes.run, ms"
MEMORY = "memory for 200 MB of output, MiB"
TIMES = (FIRST, PYTHON, SHELL, STOP)
SHOWN = {
    FIRST: "Start to the first result",
    PYTHON: "A block of code, Python",
    SHELL: "A block of code, sh",
}
AUTOGEN, *OURS = COMMAND_LINE


async def start_and_run(executor: Any) -> None:
    await executor.start()
    await run(executor, "print()")


async def run_in_shell(executor: Any, code: str) -> None:
    result = await executor.execute_code_blocks([CodeBlock(code=code, language="sh")], CancellationToken())
    assert result.exit_code == 0, result.output


async def one_round(directory: Path, times: dict[str, dict[str, list[float]]]) -> None:
    executors: dict[str, Any] = {}
    for kind, make in COMMAND_LINE.items():
        (directory / kind).mkdir(parents=True)
        executors[kind] = make(work_dir=directory / kind)
        times[kind][FIRST].append(await milliseconds(start_and_run(executors[kind])))
    for number in range(BLOCKS):
        # in turns, so that a busy moment hits them all
        for kind, executor in executors.items():
            times[kind][PYTHON].append(await milliseconds(run(executor, f"print({number})")))
            times[kind][SHELL].append(await milliseconds(run_in_shell(executor, f"echo {number}")))
            if kind != AUTOGEN:
                (directory / kind / "bare.py").write_text("print(1)")
                process = executor.processes.run(["python3", "bare.py"], check=True)
                times[kind][BARE].append(await milliseconds(process))
    for kind, executor in executors.items():
        times[kind][STOP].append(await milliseconds(executor.stop()))


@pytest.mark.filterwarnings("ignore")
async def test_command_line_executors(tmp_path: Path, figure: Figures) -> None:
    times: dict[str, dict[str, list[float]]] = {
        kind: {what: [] for what in (*TIMES, BARE)} for kind in COMMAND_LINE
    }
    for number in range(ROUNDS):
        await one_round(tmp_path / str(number), times)
    rows = {what: {kind: median(found[what]) for kind, found in times.items()} for what in TIMES}
    rows[MEMORY] = {kind: memory_for_a_flood(kind) for kind in COMMAND_LINE}
    table = Table(
        "", *COMMAND_LINE, title="command-line executors; in brackets: how many times as fast as AutoGen's"
    )
    for what, row in rows.items():
        table.add_row(what, *(f"{value:.1f} ({row[AUTOGEN] / value:.2f})" for value in row.values()))
    bare = {kind: median(times[kind][BARE]) for kind in OURS}
    table.add_row(BARE, "", *(f"{value:.1f}" for value in bare.values()))
    beside = (f"{rows[PYTHON][kind] / value:.2f}" for kind, value in bare.items())
    table.add_row("a block of Python, times that", "", *beside)
    Console(width=140).print(table)
    for what, title in SHOWN.items():
        for kind in OURS:
            ours, theirs = rows[what][kind], rows[what][AUTOGEN]
            figure(f"{title}: {kind}", f"{ours:.1f} ms", f"{theirs:.0f} ms", f"{theirs / ours:.1f}")
