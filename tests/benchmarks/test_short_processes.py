"""How long a process in a sandbox takes, from the call to its result, beside `docker exec` and a process without a sandbox.

``pytest -m benchmark --workers 0 -s tests/benchmarks/test_short_processes.py``. The aim is less than 5 ms (p50) in a Docker session, and less
than 3 ms in a confined one.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from statistics import quantiles
from typing import Any

import pytest
from benchmarks.conftest import Figures
from benchmarks.flood import SESSIONS, run
from benchmarks.timing import milliseconds
from rich.console import Console
from rich.table import Table

pytestmark = [pytest.mark.benchmark, pytest.mark.docker, pytest.mark.timeout(600)]

ARGV = ["true"]
COUNT, COUNT_OF_EXECS = 500, 30
AT_ONCE = 100

Work = Callable[[], Awaitable[Any]]


async def bare(*argv: str) -> None:
    """Run a process of this machine, and take its output."""
    process = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    await process.communicate()
    assert process.returncode == 0


@asynccontextmanager
async def container() -> AsyncGenerator[str]:
    """A container that does nothing."""
    command = [
        "docker",
        "run",
        "--detach",
        "--rm",
        "--network",
        "none",
        "--init",
        "python:3-slim",
        "sleep",
        "600",
    ]
    name = (await asyncio.to_thread(subprocess.check_output, command, text=True)).strip()
    try:
        yield name
    finally:
        await bare("docker", "kill", name)


async def p50_and_p99(work: Work, count: int) -> tuple[float, float]:
    await work()
    cuts = quantiles([await milliseconds(work()) for _ in range(count)], n=100, method="inclusive")
    return cuts[49], cuts[98]


async def each_of_many(work: Work) -> float:
    """Milliseconds for each of many at once."""
    return await milliseconds(asyncio.gather(*(work() for _ in range(AT_ONCE)))) / AT_ONCE


async def test_one_process(figure: Figures) -> None:
    without, _ = await p50_and_p99(lambda: bare(*ARGV), COUNT)
    async with container() as name:
        by_exec, _ = await p50_and_p99(lambda: bare("docker", "exec", name, *ARGV), COUNT_OF_EXECS)
    table = Table(
        "",
        "p50, ms",
        "p99, ms",
        "times one without a sandbox",
        "docker exec takes so many times",
        f"each of {AT_ONCE} at once, ms",
        "a block before and after them, ms",
        title=f"run({ARGV})",
    )
    at_once = await each_of_many(lambda: bare(*ARGV))
    table.add_row(
        "without a sandbox", f"{without:.2f}", "", "1", f"{by_exec / without:.0f}", f"{at_once:.2f}", ""
    )
    table.add_row("docker exec", f"{by_exec:.1f}", "", f"{by_exec / without:.0f}", "1", "", "")
    for kind, make in SESSIONS.items():
        executor = make()
        block = partial(run, executor, "print(1)")
        before, _ = await p50_and_p99(block, COUNT)

        async def work(executor: Any = executor) -> None:
            result = await executor.processes.run(ARGV)
            assert result.returncode == 0

        half, most = await p50_and_p99(work, COUNT)
        at_once = await each_of_many(work)
        after, _ = await p50_and_p99(block, COUNT)
        table.add_row(
            kind,
            f"{half:.2f}",
            f"{most:.2f}",
            f"{half / without:.1f}",
            f"{by_exec / half:.0f}",
            f"{at_once:.2f}",
            f"{before:.2f}, {after:.2f}",
        )
        figure(f"A process: {kind}", f"{half:.1f} ms (p99: {most:.1f})")
        await executor.stop()
    figure("A process by `docker exec`", f"{by_exec:.0f} ms")
    figure("A process without a sandbox", f"{without:.1f} ms")
    Console(width=140).print(table)
