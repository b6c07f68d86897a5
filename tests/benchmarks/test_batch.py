"""Small tasks with a scripted model: a batch beside AutoGen's team with a container for each task.

``pytest -m benchmark --workers 0 -s tests/benchmarks/test_batch.py``. AutoGen's stop of ten seconds is left out: its containers
are killed. Both ways of running it are shown, one task after the other, as a loop does it, and many at the same time.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.agents import ApprovalRequest, ApprovalResponse, AssistantAgent, CodeExecutorAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_ext.code_executors.docker import DockerCommandLineCodeExecutor
from batch.batches import coder, doubling, numbers, results
from batch.test_kills import workers_of
from benchmarks.conftest import Figures
from rich.console import Console
from rich.table import Table
from support.openai_server import ScriptedServer

from codeact_team.batch.batch import run_batch
from codeact_team.core.effects import Event

pytestmark = [pytest.mark.benchmark, pytest.mark.docker, pytest.mark.timeout(3600)]

TASKS = int(os.environ.get("BENCHMARK_TASKS", "1000"))
OF_AUTOGEN = 40
AT_ONCE = 8


def allow(request: ApprovalRequest) -> ApprovalResponse:
    return ApprovalResponse(approved=True, reason="")


async def autogen(server: ScriptedServer, number: int) -> bool:
    executor = DockerCommandLineCodeExecutor("python:3-slim")
    await executor.start()
    client = server.client()
    try:
        team = RoundRobinGroupChat(
            [AssistantAgent("coder", client), CodeExecutorAgent("executor", executor, approval_func=allow)],
            max_turns=2,
        )
        result = await team.run(task=f"Double {number} please.")
        # on a busy machine its executor may lose what was printed
        return f"twice: {2 * number}" in str(result.messages[-1])
    finally:
        await client.close()
        container: Any = getattr(executor, "_container")  # noqa: B009 - it is private
        await asyncio.to_thread(container.kill)
        await executor.stop()


async def throughput(work: Callable[[int], Awaitable[None]], count: int, at_once: int) -> float:
    """Tasks in a second."""
    turns = asyncio.Semaphore(at_once)

    async def one(number: int) -> None:
        async with turns:
            await work(number)

    began = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(1, count + 1)))
    return count / (time.perf_counter() - began)


def memory_mib(*processes: int) -> float:
    """What processes have in memory, without what they have in common with others."""
    found = (
        re.search(r"^Pss:\s+(\d+) kB", Path(f"/proc/{one}/smaps_rollup").read_text(), re.M)
        for one in processes
    )
    return sum(int(pss[1]) for pss in found if pss is not None) / 1024


def with_docker(config: dict[str, Any]) -> dict[str, Any]:
    config["config"]["code_executor"] = {
        "provider": "codeact_team.DockerSessionCodeExecutor",
        "config": {"packages": []},
    }
    return config


async def batch(config: dict[str, Any], out: Path, count: int) -> tuple[float, list[float]]:
    """Tasks in a second, from the first that begins on, and the memory after a quarter and at the end."""
    memory, ended, began = list[float](), 0, 0.0

    def listen(event: Event) -> None:
        nonlocal ended, began
        began = began or (time.perf_counter() if event.type == "task_began" else 0.0)
        ended += event.type == "task_ended"
        if event.type == "task_ended" and ended in (count // 4, count):
            memory.append(memory_mib(os.getpid(), *workers_of(os.getpid())))

    result = await run_batch(config, numbers(count), out=out, listeners=[listen])
    seconds = time.perf_counter() - began
    assert (result.outcomes, result.wrong) == ({"answered": count}, 0)
    assert [one["id"] for one in results(out)] == [f"n{n}" for n in range(1, count + 1)]
    return count / seconds, memory


@pytest.mark.filterwarnings("ignore")
async def test_throughput_beside_autogens_team(tmp_path: Path, figure: Figures) -> None:
    table = Table("what", "tasks", "tasks/s", "of AutoGen's loop", "memory after a quarter, at the end (MiB)")
    with ScriptedServer.in_thread(doubling) as server:
        right: list[bool] = []

        async def one(number: int) -> None:
            right.append(await autogen(server, number))

        loop = await throughput(one, OF_AUTOGEN, 1)
        table.add_row("AutoGen, one after the other", f"{OF_AUTOGEN}", f"{loop:.2f}", "1.0")
        at_once = await throughput(one, OF_AUTOGEN, AT_ONCE)
        table.add_row(
            f"AutoGen, {AT_ONCE} at once", f"{OF_AUTOGEN}", f"{at_once:.2f}", f"{at_once / loop:.1f}"
        )
        for name, config, count in (
            ("batch, Docker", with_docker(coder(server.base_url)), TASKS // 10),
            ("batch, confined", coder(server.base_url), TASKS),
        ):
            rate, memory = await batch(config, tmp_path / name, count)
            told = ", ".join(f"{each:.0f}" for each in memory)
            table.add_row(name, f"{count}", f"{rate:.2f}", f"{rate / loop:.1f}", told)
            theirs = f"{loop:.1f}, one after the other; {at_once:.1f}, {AT_ONCE} at once"
            figure(
                f"Small tasks in a second, of {count}: {name}", f"{rate:.1f}", theirs, f"{rate / loop:.1f}"
            )
    Console(width=120).print(table, f"AutoGen: {right.count(False)} of {len(right)} without the right output")
