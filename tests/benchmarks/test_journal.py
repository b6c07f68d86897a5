"""What it costs to record: an entry of the journal without and with a sync, beside a bare write and ``fdatasync``.

``pytest -m benchmark -n 0 -s tests/benchmarks/test_journal.py``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
from rich.console import Console
from rich.table import Table

from codeact_team.journal.log import Log, encode

pytestmark = [pytest.mark.benchmark, pytest.mark.timeout(600)]

ROUNDS = 2000
ENTRY = {"n": 1234, "at": 1700000000.123456, "answered": 1233, "outcome": "x" * 400}


def milliseconds_of(work: Callable[[], None], rounds: int) -> float:
    times: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        times.append(1000 * (time.perf_counter() - began))
    return median(times)


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
