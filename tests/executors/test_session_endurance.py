"""What must hold over many blocks, and with many sessions at once."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import threading
from pathlib import Path

import pytest
from support.executing import Kind, living_interpreters, run

from codeact_team.core.execution import SessionResult

pytestmark = [living_interpreters, pytest.mark.long, pytest.mark.timeout(600)]

SIZE = """
import os, threading
print(len(os.listdir("/proc/self/fd")), threading.active_count())
print(next(line for line in open("/proc/self/status") if line.startswith("VmRSS")))
"""


def memory_kib(text: str) -> int:
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    assert found is not None
    return int(found[1])


def own_memory_kib() -> int:
    return memory_kib(Path("/proc/self/status").read_text())


async def test_10_000_blocks_leave_nothing_behind(kind: Kind) -> None:
    executor = kind.make()

    async def measured() -> tuple[tuple[int, int], str, int, int]:
        gc.collect()
        inside = (await run(executor, SIZE)).output
        here = len(os.listdir("/proc/self/fd")), threading.active_count()
        return (
            here,
            inside.split("\n")[0],
            own_memory_kib(),
            memory_kib(inside),
        )

    for number in range(1000):
        await run(executor, f"x = [{number}]\nprint(x)")
    held, inside, host_kib, inside_kib = await measured()
    for number in range(10_000):
        result = await run(
            executor, f"x = [{number}]\ndef f(): return x\nprint(f())\nif {number} % 10 == 0: 1 / 0"
        )
        assert isinstance(result, SessionResult)
        assert result.output.startswith(f"[{number}]\n")
    held_after, inside_after, host_kib_after, inside_kib_after = await measured()
    assert (held_after, inside_after) == (held, inside)
    # what grows by a hundred bytes a block grows by a megabyte
    assert host_kib_after - host_kib < 8 * 1024
    # the source of the functions that were defined, for tracebacks
    assert inside_kib_after - inside_kib < 32 * 1024
    await executor.stop()


async def test_100_sessions_at_once_are_each_correct(kind: Kind) -> None:
    executors = [kind.make(memory_mib=128) for _ in range(100)]
    try:
        for n in range(0, 100, 10):
            await asyncio.gather(*(executor.start() for executor in executors[n : n + 10]))
        await asyncio.gather(*(run(executor, f"total = {n}") for n, executor in enumerate(executors)))
        for step in range(20):
            await asyncio.gather(*(run(executor, f"total += {step}") for executor in executors))
        results = await asyncio.gather(*(run(executor, "total") for executor in executors))
        assert [int(result.output) for result in results] == [n + sum(range(20)) for n in range(100)]
    finally:
        await asyncio.gather(*(executor.stop() for executor in executors))
