"""How long a fork of a living interpreter takes until it has a result, what it costs, and what a restart takes.

``pytest -m benchmark --workers 0 -s tests/benchmarks``. Ratios, as absolute numbers are those of a machine and its load.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from benchmarks.conftest import Figures
from benchmarks.flood import COMMAND_LINE
from benchmarks.timing import milliseconds, pss_mib
from rich.console import Console
from rich.table import Table

from codeact_team.core.executor_interface import SessionCodeExecutor
from codeact_team.executors.confined import ConfinedSessionCodeExecutor
from codeact_team.executors.docker import DockerSessionCodeExecutor

pytestmark = [pytest.mark.benchmark, pytest.mark.docker, pytest.mark.timeout(1200)]

KINDS: dict[str, Callable[..., ConfinedSessionCodeExecutor | DockerSessionCodeExecutor]] = {
    "Docker": DockerSessionCodeExecutor,
    "confined": ConfinedSessionCodeExecutor,
}
HEAPS_MIB = (0, 50, 200, 800)
SHOWN_HEAP_MIB = 200
FORKS, RESTARTS = 30, 15
SIDE_BY_SIDE = 32


async def run(executor: SessionCodeExecutor, code: str) -> None:
    result = await executor.run_code_blocks([CodeBlock(code, "python")], CancellationToken())
    assert result.exit_code == 0, result.output


class Forks:
    """Forks of an executor that are made and ended again."""

    def __init__(self, of: SessionCodeExecutor) -> None:
        self._of = of
        self._living: list[SessionCodeExecutor] = []

    async def fork_and_run(self, count: int) -> None:
        """From the fork to the first result of all."""
        self._living += await self._of.fork(count)
        await asyncio.gather(*(run(fork, "x = 1") for fork in self._living))

    async def end(self) -> None:
        for fork in self._living:
            await fork.stop()
        self._living.clear()


@pytest.mark.filterwarnings("ignore")
async def test_fork_to_first_result(tmp_path: Path, figure: Figures) -> None:
    # the fastest way to a second interpreter that AutoGen has: another container
    theirs = COMMAND_LINE["AutoGen, Docker"](work_dir=tmp_path)

    async def autogen() -> None:
        await theirs.start()
        await theirs.execute_code_blocks([CodeBlock("x = 1", "python")], CancellationToken())

    began = [await milliseconds(autogen())]
    await theirs.stop()
    table = Table("", "heap, MiB", "first result, ms", "AutoGen's is so many times", "PSS a fork, MiB")
    table.add_row("AutoGen: a container", "0", f"{began[0]:.0f}", "1", "")
    for name, kind in KINDS.items():
        async with kind(memory_mib=4096) as executor:
            forks = Forks(executor)
            for heap in HEAPS_MIB:
                # of small objects, as a fork has to go through all pages
                await run(executor, f"kept = [bytes(1000) for _ in range({heap} << 10)]")
                times: list[float] = []
                for _ in range(FORKS):
                    times.append(await milliseconds(forks.fork_and_run(1)))
                    await forks.end()
                before = sum(pss_mib(os.getpid()).values())
                await forks.fork_and_run(8)
                mib = (sum(pss_mib(os.getpid()).values()) - before) / 8
                await forks.end()
                half = median(times)
                shown = f"{mib:.1f}" if name == "confined" else ""
                table.add_row(name, str(heap), f"{half:.1f}", f"{began[0] / half:.0f}", shown)
                if heap == SHOWN_HEAP_MIB:
                    what = f"Fork of a session with {heap} MiB of objects, to its first result: {name}"
                    figure(what, f"{half:.0f} ms", f"{began[0]:.0f} ms", f"{began[0] / half:.0f}")
                    if shown:
                        figure(f"Memory of such a fork: {name}", f"{shown} MiB")
    Console(width=140).print(table)


async def test_many_forks_side_by_side() -> None:
    table = Table("", f"{SIDE_BY_SIDE} forks of 200 MiB, ms until all have a result", "one, ms")
    for name, kind in KINDS.items():
        async with kind(memory_mib=4096, pids=256) as executor:
            await run(executor, "kept = [bytes(1000) for _ in range(200 << 10)]")
            forks = Forks(executor)
            took = await milliseconds(forks.fork_and_run(SIDE_BY_SIDE))
            alone = median([await milliseconds(run(executor, "x = 1")) for _ in range(20)])
            table.add_row(name, f"{took:.0f}", f"{alone:.2f}")
            await forks.end()
    Console(width=140).print(table)


async def test_restart_to_first_result(figure: Figures) -> None:
    """With what costs most in a fresh interpreter: modules."""
    modules = {"json": "json", "asyncio": "asyncio", "decimal": "decimal", "unittest": "unittest.mock"}
    table = Table("", "start to first result, ms", "restart to first result, ms", "ratio")
    for name, kind in KINDS.items():

        async def again(executor: SessionCodeExecutor) -> None:
            await executor.restart()
            await run(executor, "x = 1")

        async with kind(modules=modules) as executor:
            first = await milliseconds(run(executor, "x = 1"))
            half = median([await milliseconds(again(executor)) for _ in range(RESTARTS)])
            table.add_row(name, f"{first:.0f}", f"{half:.1f}", f"{first / half:.0f}")
            figure(
                f"Restart of a session with modules, to its first result: {name}", f"{half:.0f} ms", "", ""
            )
    Console(width=140).print(table)
