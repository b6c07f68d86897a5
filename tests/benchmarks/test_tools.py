"""What a call of a tool costs, from code in a sandbox to a function on the host and back, beside a block of AutoGen's.

``pytest -m benchmark --workers 0 -s tests/benchmarks``.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_ext.code_executors.docker import DockerCommandLineCodeExecutor as AutoGenExecutor
from benchmarks.conftest import Figures
from benchmarks.flood import SESSIONS, run
from benchmarks.test_session import show, times

from codeact_team.agents.agent_config import ToolLimits
from codeact_team.agents.tool_calls import AgentTools
from codeact_team.core.execution import HostTools
from codeact_team.core.executor_interface import SessionCodeExecutor

pytestmark = [pytest.mark.benchmark, pytest.mark.docker, pytest.mark.timeout(600)]

TIMES = """
import asyncio, time
from statistics import median

def median_of(count, call):
    found = []
    for _ in range(count):
        began = time.perf_counter()
        call()
        found.append(time.perf_counter() - began)
    return 1000 * median(found)
"""
ONE = "print(median_of(1000, lambda: tools.add(2, 3)))"
GATHERED = """
async def gathered(count, call):
    began = time.perf_counter()
    await asyncio.gather(*(call() for _ in range(count)))
    return 1000 * (time.perf_counter() - began)

print(median([await gathered(100, lambda: tools.add.aio(2, 3)) for _ in range(30)]))
"""
SLOW = "print(await gathered(200, tools.slow.aio))"


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def slow() -> str:
    """Take 50 ms."""
    await asyncio.sleep(0.05)
    return "done"


async def printed(executor: SessionCodeExecutor, code: str, tools: HostTools) -> float:
    """The number that ``code`` prints."""
    output = ""
    block = CodeBlock(code=code, language="python")
    async for item in executor.execute_code_blocks_stream([block], CancellationToken(), tools=tools):
        output += item if isinstance(item, str) else ""
    return float(output)


@pytest.mark.filterwarnings("ignore")
async def test_calls_of_tools(tmp_path: Path, figure: Figures) -> None:
    autogen = AutoGenExecutor(work_dir=tmp_path)
    await autogen.start()
    block = await times(20, lambda: run(autogen, "print(1)"))
    await autogen.stop()
    rows: dict[str, tuple[float, float, str]] = {}
    for kind, make in SESSIONS.items():
        executor = make()
        agent_tools = AgentTools(
            "agent",
            tools=[add, slow],
            workbench=None,
            limits=ToolLimits(max_parallel=20, max_calls=1_000_000),
            approval=(),
            handler=None,
        )
        tools = await agent_tools.begin_turn(CancellationToken())
        await run(executor, TIMES)
        one = await printed(executor, ONE, tools)
        rows[f"{kind}: a call"] = one, block, "AutoGen's block, which cannot call; the target is 0.6 ms"
        figure(f"A call of a tool from code: {kind}", f"{one:.2f} ms")
        gathered = await printed(executor, GATHERED, tools)
        rows[f"{kind}: 100 gathered calls"] = gathered, 100 * one, "one after the other; the target is 20 ms"
        waited = await printed(executor, SLOW, tools)
        rows[f"{kind}: 200 calls of 50 ms, 20 at a time"] = waited, 500, "ideal; the target is 1.3 times that"
        await executor.stop()
        await agent_tools.stop()
    show("calls of tools", rows)
