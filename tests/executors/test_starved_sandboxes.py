"""Sandboxes that get a twentieth of a processor: all takes longer, and nothing is lost for that."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
from support.executing import KINDS, LIVING, Kind, run, usually

from codeact_team.core.execution import Outcome
from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.executors.session import InterpreterCodeExecutor

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]
every_kind = usually(*KINDS)
living = usually(*LIVING, among=LIVING)

MANY = "import subprocess\nfor _ in range(40): subprocess.Popen(['sleep', '600'])\n"


@pytest.fixture
async def starved(kind: Kind, tmp_path: Path) -> AsyncGenerator[SandboxedCodeExecutor]:
    # a container takes twenty times as long to start
    executor = kind.make(work_dir=tmp_path, cpus=0.05, timeout=20)
    await executor.start()
    yield executor
    await executor.stop()


@every_kind
async def test_a_block_that_is_killed_with_many_processes_takes_nothing_along(
    starved: SandboxedCodeExecutor,
) -> None:
    stubborn = "import signal, time\nsignal.signal(2, signal.SIG_IGN)\ntime.sleep(600)"
    result = await run(starved, MANY + stubborn)
    assert result.outcome is Outcome.TIMED_OUT
    count = "import glob\nprint(sum(b'sleep' in open(name, 'rb').read() for name in glob.glob('/proc/[0-9]*/cmdline')))"
    following = await run(starved, count)
    assert (following.outcome, following.output) == (Outcome.COMPLETED, "0\n")


@every_kind
async def test_a_process_whose_time_is_over_ends_with_all_that_it_has_started(
    starved: SandboxedCodeExecutor,
) -> None:
    async with await starved.processes.start(["cat"]) as beside:
        with pytest.raises(subprocess.TimeoutExpired):
            await starved.processes.run(["python3", "-c", MANY + "import time; time.sleep(600)"], timeout=10)
        await beside.write(b"unharmed")
        assert (await beside.read()).stdout == b"unharmed"
    listed = (await starved.processes.run(["sh", "-c", "cat /proc/[0-9]*/cmdline"])).stdout
    assert b"sleep\x00600" not in listed


@living
async def test_variables_outlive_an_interrupt_and_copies(starved: InterpreterCodeExecutor) -> None:
    assert (await run(starved, "import time\nrows = [1]")).outcome is Outcome.COMPLETED
    working = asyncio.ensure_future(run(starved, "rows.append(2)\ntime.sleep(600)"))
    await asyncio.sleep(3)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    for number in range(3):
        point = await starved.checkpoint()
        [fork] = await starved.fork()
        assert (await run(fork, f"rows.append({number})\nprint(rows)")).outcome is Outcome.COMPLETED
        await starved.promote(fork)
        assert (await run(starved, f"print(rows[-1] == {number})")).output == "True\n"
        await starved.rollback(point)
    assert (await run(starved, "print(rows)")).output == "[1, 2]\n"


@living
async def test_what_is_open_at_the_end_is_written(starved: InterpreterCodeExecutor, tmp_path: Path) -> None:
    code = "file = open('rows.csv', 'w')\nlines = [file.write('a,b\\n') for _ in range(1000)]"
    assert (await run(starved, code)).outcome is Outcome.COMPLETED
    await starved.stop()
    assert (tmp_path / "rows.csv").read_text() == "a,b\n" * 1000
