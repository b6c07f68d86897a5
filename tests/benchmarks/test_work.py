"""How much work a block and a tool's call are: function calls on the host, and processor time of each process.

``pytest -m benchmark --workers 0 -s tests/benchmarks/test_work.py``. Processor time depends less on what else runs than the
time on the clock beside it; the counts do not at all.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from benchmarks.flood import SESSIONS, run
from rich.console import Console
from rich.table import Table

from codeact_team.agents.agent_config import ToolLimits
from codeact_team.agents.tool_calls import AgentTools

pytestmark = [pytest.mark.benchmark, pytest.mark.docker, pytest.mark.timeout(600)]

ROUNDS = 5
ROLES = ("host", "supervisor", "interpreter")
ONE_CALL = "tools.add(2, 3)"
GATHERED = "import asyncio\nawait asyncio.gather(*(tools.add.aio(2, 3) for _ in range(100)))"

WHO = "import os\nprint(os.getpid(), os.readlink('/proc/self/ns/pid'))"

Work = Callable[[], Awaitable[Any]]


async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def processor_ms(pid: int) -> float:
    """What all threads of a process have used so far."""
    used = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        used += int((task / "schedstat").read_text().split()[0])
    return used / 1e6


def fields_of(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def with_the_id(own: str, namespace: str) -> int:
    """The process that has the id ``own`` in that namespace."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            is_it = os.readlink(f"/proc/{pid}/ns/pid") == namespace
            ids = re.search(r"^NSpid:.*\b(\d+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        except OSError:
            continue
        if is_it and ids is not None and ids[1] == own:
            return int(pid)
    raise LookupError("the interpreter is not to be seen from here")


async def processes_of(executor: Any) -> dict[str, int]:
    """The processes of a session, by what they do."""
    result = await executor.execute_code_blocks([CodeBlock(code=WHO, language="python")], CancellationToken())
    own, namespace = result.output.split()
    interpreter = with_the_id(own, namespace)
    return {
        "host": os.getpid(),
        "supervisor": int(fields_of(interpreter)[1]),
        "interpreter": interpreter,
    }


async def function_calls(work: Work, times: int) -> float:
    """How many Python functions are entered, or go on, per time that ``work`` is done."""
    entered = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal entered
        entered += event == "call"

    sys.setprofile(count)
    try:
        for _ in range(times):
            await work()
    finally:
        sys.setprofile(None)
    return entered / times


async def turns(work: Work, times: int) -> float:
    """How often the event loop goes round per time that ``work`` is done."""
    loop: Any = asyncio.get_running_loop()
    gone_round = 0
    once = loop._run_once

    def counted() -> None:
        nonlocal gone_round
        gone_round += 1
        once()

    loop._run_once = counted
    try:
        for _ in range(times):
            await work()
    finally:
        del loop._run_once
    return gone_round / times


async def measured(work: Work, processes: dict[str, int], times: int) -> list[float]:
    """Per time that ``work`` is done: milliseconds on the clock, and of each process."""
    rounds: list[list[float]] = []
    for _ in range(ROUNDS):
        before = [processor_ms(processes[role]) for role in ROLES]
        began = time.perf_counter()
        for _ in range(times):
            await work()
        passed = 1000 * (time.perf_counter() - began)
        after = [processor_ms(processes[role]) for role in ROLES]
        spent = [passed, *(end - start for start, end in zip(before, after, strict=True))]
        rounds.append([each / times for each in spent])
    return [median(column) for column in zip(*rounds, strict=True)]


@pytest.mark.filterwarnings("ignore")
async def test_work_of_a_block_and_of_a_call() -> None:
    table = Table(
        "",
        "on the clock",
        *ROLES,
        "function calls, host",
        "turns of its loop",
        title="milliseconds; in brackets: times what a print block takes there",
    )
    for kind, make in SESSIONS.items():
        executor = make()
        agent_tools = AgentTools(
            "agent",
            tools=[add],
            workbench=None,
            limits=ToolLimits(max_parallel=20, max_calls=1_000_000),
            approval=(),
            handler=None,
        )
        tools = await agent_tools.begin_turn(CancellationToken())

        async def call(code: str, executor: Any = executor, tools: Any = tools) -> None:
            block = CodeBlock(code=code, language="python")
            async for item in executor.execute_code_blocks_stream([block], CancellationToken(), tools=tools):
                assert isinstance(item, str) or item.exit_code == 0, item

        works: dict[str, tuple[Work, int]] = {
            "a print block": (lambda executor=executor: run(executor, "print(1)"), 100),
            "an empty block with tools": (lambda call=call: call("pass"), 100),
            "a block of one call": (lambda call=call: call(ONE_CALL), 100),
            "a block of 100 gathered calls": (lambda call=call: call(GATHERED), 10),
        }
        processes = await processes_of(executor)
        base: list[float] | None = None
        for what, (work, times) in works.items():
            await work()
            found = await measured(work, processes, times)
            base = base or found
            ratios = [f"{one:.3f} ({one / other:.2f})" for one, other in zip(found, base, strict=True)]
            calls, rounds = await function_calls(work, times), await turns(work, times)
            table.add_row(f"{kind}: {what}", *ratios, f"{calls:.0f}", f"{rounds:.2f}")
        await executor.stop()
        await agent_tools.stop()
    Console(width=160).print(table)
