"""What it costs to record: an entry of the journal without and with a sync, beside a bare write and ``fdatasync``; and what
a long run costs to go on with, and to list.

``pytest -m benchmark --workers 0 -s tests/benchmarks/test_journal.py``.
"""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from rich.console import Console
from rich.table import Table
from support.recorded import journal_of, result

from codeact_team.agents.block_calls import AgentBlock
from codeact_team.core.execution import ExecutionResult, Outcome
from codeact_team.journal.journal import Journal
from codeact_team.journal.log import Log, encode
from codeact_team.journal.recorder import Recorder
from codeact_team.journal.resumption import Resumption
from codeact_team.journal.run_directory import About, RunDirectory
from codeact_team.runs.kept_runs import KeptRun

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(600)]

ROUNDS = 2000
ENTRY = {"n": 1234, "at": 1700000000.123456, "answered": 1233, "outcome": "x" * 400}


def milliseconds_of(work: Callable[[], object], rounds: int) -> float:
    times: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - began))
    return median(times)


class NoExecutor(CodeExecutor):
    """Stands for one: nothing runs here."""

    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def restart(self) -> None: ...
    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> CodeResult:
        raise NotImplementedError


EXECUTOR = NoExecutor()


async def _run(_: list[CodeBlock]) -> CodeResult:
    raise NotImplementedError


def block(number: int) -> AgentBlock:
    """A block of code with a number in it, whose result is as large as the line allows."""
    source = CodeBlock(code=f"print({number})\n" + "# what else is there\n" * 20, language="python")
    asked = AgentBlock(EXECUTOR, [source], _run)
    asked.source = "coder"
    return asked


async def outcome() -> ExecutionResult:
    return ExecutionResult(exit_code=0, output="x" * 600, outcome=Outcome.COMPLETED)


async def recorded(runs: Path, blocks: int) -> RunDirectory:
    about = About(id=f"{blocks}", task="Go.", config="config.yaml", working_directory="/", versions={})
    recorder = Recorder.create(runs, about, "provider: any\n", {})
    journal = journal_of(recorder)
    for number in range(blocks):
        await journal.intercept(block(number), outcome)
    recorder(result())
    recorder.close()
    return recorder.directory


async def nothing() -> ExecutionResult:
    raise AssertionError("it is known")


async def test_a_long_run(tmp_path: Path) -> None:
    table = Table(
        "blocks", "journal, MiB", "to go on, s", "peak, MiB", "kept, MiB", "an answer, ms", "list, ms"
    )
    for blocks in (1_000, 10_000):
        directory = await recorded(tmp_path, blocks)
        size = directory.lines.stat().st_size / 2**20
        listed = milliseconds_of(lambda run=directory: _read(run), 100)
        began = time.perf_counter()
        Recorder.reopen(directory, {})[0].close()
        opened = time.perf_counter() - began
        tracemalloc.start()
        recorder, history = Recorder.reopen(directory, {})
        journal = Journal(Resumption(history, recorder, lambda: None), recorder.requests)
        kept, peak = (each / 2**20 for each in tracemalloc.get_traced_memory())
        tracemalloc.stop()
        began = time.perf_counter()
        for number in range(blocks):
            await journal.intercept(block(number), nothing)
        answer = 1000 * (time.perf_counter() - began) / blocks
        recorder.close()
        figures = (size, opened, peak, kept, answer, listed)
        table.add_row(f"{blocks:,}", *(f"{figure:.2f}" for figure in figures))
    Console(width=100).print(table)


def _read(run: RunDirectory) -> None:
    assert KeptRun.read(run).result is not None


def test_an_entry(tmp_path: Path) -> None:
    line = encode(ENTRY)
    bare = os.open(tmp_path / "bare", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write_and_sync() -> None:
        os.write(bare, line)
        os.fdatasync(bare)

    plain, synced = Log(tmp_path / "plain"), Log(tmp_path / "synced", sync=True)
    table = Table("", "ms, p50", title=f"an entry of {len(line)} bytes")
    table.add_row("a bare write", f"{milliseconds_of(lambda: _write(bare, line), ROUNDS):.4f}")
    table.add_row("an entry", f"{milliseconds_of(lambda: plain.append(ENTRY), ROUNDS):.4f}")
    table.add_row("a bare write with fdatasync", f"{milliseconds_of(write_and_sync, ROUNDS // 10):.4f}")
    table.add_row("an entry with sync", f"{milliseconds_of(lambda: synced.append(ENTRY), ROUNDS // 10):.4f}")
    Console(width=80).print(table)
    plain.close()
    synced.close()
    os.close(bare)


def _write(descriptor: int, line: bytes) -> None:
    os.write(descriptor, line)
