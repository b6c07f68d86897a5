"""How long a sandbox from a pool takes, how many there are in a second, and what one that waits costs.

``pytest -m benchmark --workers 0 -s tests/benchmarks``. Ratios, as absolute numbers are those of a machine and its load.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import quantiles
from typing import Any

import pytest
from benchmarks.conftest import Figures
from benchmarks.flood import COMMAND_LINE, SESSIONS
from benchmarks.timing import milliseconds, pss_mib
from rich.console import Console
from rich.table import Table

from codeact_team.executors.confined import ConfinedSessionCodeExecutor
from codeact_team.executors.pool import SandboxPool

pytestmark = [pytest.mark.benchmark, pytest.mark.docker, pytest.mark.timeout(1200)]

OURS = {name: make for name, make in (COMMAND_LINE | SESSIONS).items() if "AutoGen" not in name}
HANDED_OUT, FRESH = 100, 20
FROM_A_POOL = "from a pool"
SECONDS = 10
TAKERS = 4
IDLE_SESSIONS = 100


def p50_and_p99(times: list[float]) -> tuple[float, float]:
    cuts = quantiles(times, n=100, method="inclusive")
    return cuts[49], cuts[98]


async def starts(
    make: Callable[[], Any], count: int, before_each: Callable[[], Awaitable[None]]
) -> list[float]:
    """Milliseconds of so many starts, each of which is stopped before the next."""
    times: list[float] = []
    for _ in range(count):
        await before_each()
        executor = make()
        times.append(await milliseconds(executor.start()))
        await executor.stop()
    return times


async def nothing() -> None: ...


@pytest.mark.filterwarnings("ignore")
async def test_hand_out(tmp_path: Path, figure: Figures) -> None:
    table = Table("", "p50, ms", "p99, ms", "AutoGen's p50 is so many times", title="from start() to ready")
    # its stop takes ten seconds
    theirs, _ = p50_and_p99(
        await starts(lambda: COMMAND_LINE["AutoGen, Docker"](work_dir=tmp_path), 5, nothing)
    )
    table.add_row("AutoGen, Docker", f"{theirs:.1f}", "", "1")
    for kind, make in OURS.items():
        rows = {"fresh": await starts(make, FRESH, nothing)}
        async with SandboxPool(make(), size=2) as pool:
            rows[FROM_A_POOL] = await starts(make, HANDED_OUT, pool.filled)
        for how, times in rows.items():
            half, most = p50_and_p99(times)
            table.add_row(f"{kind}, {how}", f"{half:.2f}", f"{most:.2f}", f"{theirs / half:.1f}")
            if how == FROM_A_POOL:
                ours = f"{half:.1f} ms (p99: {most:.1f})"
                figure(f"A sandbox from a pool: {kind}", ours, f"{theirs:.0f} ms", f"{theirs / half:.0f}")
    Console(width=140).print(table)


async def test_sandboxes_per_second(figure: Figures) -> None:
    """Each is started, and stopped at once, by some that do that side by side."""

    async def take(make: Callable[[], Any], end: float) -> int:
        count = 0
        while time.monotonic() < end:
            executor = make()
            await executor.start()
            await executor.stop()
            count += 1
        return count

    async def rate(make: Callable[[], Any]) -> float:
        end = time.monotonic() + SECONDS
        return sum(await asyncio.gather(*(take(make, end) for _ in range(TAKERS)))) / SECONDS

    table = Table("", "without a pool", "with one", title=f"sandboxes per second, {TAKERS} at a time")
    for kind, make in OURS.items():
        alone = await rate(make)
        async with SandboxPool(make(), size=2 * TAKERS) as pool:
            await pool.filled()
            table.add_row(kind, f"{alone:.1f}", f"{await rate(make):.1f}")
        figure(f"Sandboxes started and stopped in a second: {kind}", f"{alone:.0f}")
    Console(width=140).print(table)


async def test_memory_of_idle_sessions(figure: Figures) -> None:
    async with SandboxPool(ConfinedSessionCodeExecutor(), size=IDLE_SESSIONS) as pool:
        took = await milliseconds(pool.filled())
        assert pool.ready == IDLE_SESSIONS
        by_program = pss_mib(os.getpid())
    table = Table(
        "process", "PSS, MiB a session", title=f"{IDLE_SESSIONS} confined sessions that have done nothing"
    )
    for program, mib in by_program.items():
        table.add_row(program, f"{mib / IDLE_SESSIONS:.2f}")
    mib = sum(by_program.values()) / IDLE_SESSIONS
    table.add_row("together", f"{mib:.2f}")
    figure(
        f"Memory of each of {IDLE_SESSIONS} confined sessions that have done nothing yet", f"{mib:.1f} MiB"
    )
    Console(width=140).print(table)
    print(f"all of them were ready after {took / 1000:.1f} s")
