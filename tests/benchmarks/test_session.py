"""How long a living interpreter takes, beside AutoGen's Docker executor and what the machine allows, in the same run.

``pytest -m benchmark --workers 0 -s tests/benchmarks``. Ratios, as absolute numbers are those of a machine and its load.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from autogen_ext.code_executors.docker import DockerCommandLineCodeExecutor as AutoGenExecutor
from benchmarks.flood import FLOOD, SESSIONS, run
from benchmarks.timing import memory_for_a_flood, milliseconds
from rich.console import Console
from rich.table import Table

from codeact_team.sandbox.base import Process, Sandbox
from codeact_team.sandbox.confined.config import ConfinedSandboxConfig
from codeact_team.sandbox.confined.sandbox import ConfinedSandbox
from codeact_team.sandbox.docker.config import DockerSandboxConfig
from codeact_team.sandbox.docker.sandbox import DockerSandbox

pytestmark = [pytest.mark.benchmark, pytest.mark.docker, pytest.mark.timeout(600)]

IMAGE = "python:3-slim"
ECHO = """
import os
while data := os.read(0, 65536):
    os.write(1, data)
"""
BARE_RUN = ("run", "--rm", "--network", "none", IMAGE, "python3", "-c", "1")
FRAME = b"\x01\x00\x00\x00\x40" + b"x" * 64


def show(title: str, rows: dict[str, tuple[float, float, str]]) -> None:
    """Rows of: measured, compared with, and what that is."""
    table = Table("", "ms", "compared with, ms", "ratio", "", title=title)
    for what, (ours, other, name) in rows.items():
        table.add_row(what, f"{ours:.3f}", f"{other:.3f}", f"{ours / other:.4f}", name)
    Console(width=140).print(table)


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], stdout=subprocess.PIPE, text=True, check=True).stdout


async def times(count: int, work: Callable[[], Awaitable[Any]]) -> float:
    return median([await milliseconds(work()) for _ in range(count)])


async def echo(sandbox: Sandbox) -> float:
    """One frame there and back, over the same kind of stream, with nothing else around."""

    async def there_and_back(process: Process) -> None:
        await process.write(FRAME)
        left = len(FRAME)
        while left:
            left -= len(await process.read())

    async with sandbox:
        process = await sandbox.supervise()
        program = ECHO.encode()
        await process.write(b"%d\n%b" % (len(program), program))
        found = await times(2000, lambda: there_and_back(process))
        await sandbox.kill()
        await process.aclose()
    return found


@pytest.mark.filterwarnings("ignore")
async def test_one_block(tmp_path: Path) -> None:
    autogen = AutoGenExecutor(work_dir=tmp_path)
    await autogen.start()
    theirs = await times(20, lambda: run(autogen, "print(1)"))
    await autogen.stop()
    echoes = {
        "session, Docker": await echo(
            DockerSandbox(DockerSandboxConfig.model_validate({"workspace": "container"}))
        ),
        "session, confined": await echo(ConfinedSandbox(ConfinedSandboxConfig(), workspace=tmp_path)),
    }
    rows: dict[str, tuple[float, float, str]] = {}
    for kind, make in SESSIONS.items():
        executor = make()
        await run(executor, "print(1)")
        ours = await times(2000, lambda executor=executor: run(executor, "print(1)"))
        rows[f"{kind}: a block"] = ours, theirs, f"AutoGen's block; {theirs / ours:.0f} times faster"
        rows[f"{kind}: the same block"] = ours, echoes[kind], "the echo of a frame"
        await executor.stop()
    show("one print block", rows)


async def test_step_1000_costs_what_step_10_costs() -> None:
    rows: dict[str, tuple[float, float, str]] = {}
    for kind, make in SESSIONS.items():
        executor = make()
        steps = [
            await milliseconds(run(executor, f"x{n} = [{n}]\ndef f{n}(): return x{n}\nprint(f{n}())"))
            for n in range(1100)
        ]
        rows[kind] = median(steps[900:1100]), median(steps[5:205]), "steps 5 to 205; ours: steps 900 to 1100"
        await executor.stop()
    show("a step that defines a function", rows)


async def test_start_to_first_result() -> None:
    async def ours(make: Callable[[], Any]) -> None:
        executor = make()
        made.append(executor)
        await run(executor, "print(1)")

    made: list[Any] = []
    theirs = await times(7, lambda: asyncio.to_thread(docker, *BARE_RUN))
    rows: dict[str, tuple[float, float, str]] = {}
    for kind, make in SESSIONS.items():
        found = await times(7, lambda make=make: ours(make))
        rows[kind] = found, theirs, "docker run --rm python3 -c 1"
    await asyncio.gather(*(executor.stop() for executor in made))
    show("start to first result", rows)


async def interrupted(executor: Any) -> float:
    """From the cancellation of a block that would run for ever to the result of the next one."""
    token = CancellationToken()
    blocks = [CodeBlock(code="print('up')\nwhile True: pass", language="python")]
    stream = executor.execute_code_blocks_stream(blocks, token)
    await anext(stream)

    async def stop_and_go_on() -> None:
        token.cancel()
        async for _ in stream:
            pass
        await run(executor, "print(1)")

    return await milliseconds(stop_and_go_on())


async def replaced(executor: Any, kill: Callable[[], object]) -> float:
    """From the end of a killed sandbox to the result of the next block."""
    await asyncio.to_thread(kill)
    return await milliseconds(run(executor, "print(1)"))


async def test_interrupts_restarts_and_losses() -> None:
    table = Table(
        "", "interrupt to ready, ms", "restart, ms", "interpreter lost to next result, ms", title="recovery"
    )
    for kind, make in SESSIONS.items():
        executor = make()
        await run(executor, "x = 1")
        interrupt = median([await interrupted(executor) for _ in range(20)])
        restart = await times(10, executor.restart)

        async def lose(executor: Any = executor) -> None:
            blocks = [CodeBlock(code="import os; os._exit(1)", language="python")]
            await executor.execute_code_blocks(blocks, CancellationToken())
            await run(executor, "print(1)")

        table.add_row(kind, f"{interrupt:.1f}", f"{restart:.1f}", f"{await times(10, lose):.1f}")
        await executor.stop()
    Console(width=140).print(table)


async def test_a_killed_container_is_replaced() -> None:
    executor = SESSIONS["session, Docker"]()
    found: list[float] = []
    for _ in range(5):
        await run(executor, "x = 1")
        containers = (await asyncio.to_thread(docker, "ps", "-q")).split()
        found.append(await replaced(executor, lambda containers=containers: docker("kill", *containers)))
    await executor.stop()
    print(f"a killed container, to the next result: {median(found):.0f} ms")


async def test_200_mb_of_output() -> None:
    executor = SESSIONS["session, Docker"]()
    await run(executor, "print(1)")
    container = (await asyncio.to_thread(docker, "ps", "-q")).strip()

    def into_nothing() -> None:
        command = ["docker", "exec", container, "python3", "-c", FLOOD]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    theirs = await times(3, lambda: asyncio.to_thread(into_nothing))
    rows: dict[str, tuple[float, float, str]] = {}
    rows["session, Docker"] = await times(3, lambda: run(executor, FLOOD)), theirs, "docker exec > /dev/null"
    await executor.stop()
    confined = SESSIONS["session, confined"]()
    rows["session, confined"] = await times(3, lambda: run(confined, FLOOD)), theirs, "the same"
    await confined.stop()
    show("200 MB of output", rows)
    for kind in SESSIONS:
        grown = await asyncio.to_thread(memory_for_a_flood, kind)
        print(f"{kind}: memory for 200 MB of output, MiB: {grown:.1f}")
