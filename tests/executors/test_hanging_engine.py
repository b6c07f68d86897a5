"""What becomes of a block whose engine hangs: it returns in time, and says what is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from autogen_core import CancellationToken
from support.executing import KINDS, run, wait_until
from support.forwarding import Engine, engine_that_can_hang
from support.waiting import first_tick

from codeact_team.core.execution import ExecutionResult, Outcome, SessionResult
from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.sandbox.docker.address import engine_url
from codeact_team.sandbox.docker.engine import connect

pytestmark = pytest.mark.docker

BOUND = 60
"""Seconds, on a busy machine, for what takes at most a block's limit and five more. It once took 91."""
TICKS = "import time\nwhile True:\n    open('tick', 'w').write(str(time.time())); time.sleep(0.01)"


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Engine]:
    with engine_that_can_hang(tmp_path) as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.url)
        yield engine
        engine.go_on()


@asynccontextmanager
async def in_containers(directory: Path, **timeouts: int) -> AsyncGenerator[list[SandboxedCodeExecutor]]:
    """For each of ``timeouts``, by a name, an executor of either kind, started."""
    executors = [
        KINDS[kind].make(work_dir=directory / f"{kind}-{name}", timeout=timeout)
        for name, timeout in timeouts.items()
        for kind in ("docker", "docker-session")
    ]
    before = held()
    try:
        await asyncio.gather(*(executor.start() for executor in executors))
        yield executors
    finally:
        await asyncio.gather(*(executor.stop() for executor in executors))
    assert held() == before


def held() -> set[str]:
    """The containers of this process."""
    return KINDS["docker"].held()


def assert_says_it_is_lost(result: ExecutionResult) -> None:
    assert "was lost: " in result.output
    if isinstance(result, SessionResult):
        assert result.state_lost


async def assert_recovers(executor: SandboxedCodeExecutor) -> None:
    assert (await run(executor, "print('next')")).output == "next\n"


@pytest.mark.long
async def test_a_container_that_was_paused_is_named_as_the_reason(tmp_path: Path) -> None:
    before = held()
    async with in_containers(tmp_path, paused=2) as executors:
        with closing(connect(engine_url())) as client:
            for container in held() - before:
                client.pause(container)
        for result in await asyncio.gather(*(run(executor, "print('ran')") for executor in executors)):
            assert " paused" in result.output
            assert_says_it_is_lost(result)
        for executor in executors:
            await assert_recovers(executor)


@pytest.mark.long
async def test_blocks_return_in_time_from_an_engine_that_hangs(tmp_path: Path, engine: Engine) -> None:
    # whether they run by then or begin, and whoever stops them
    before = held()
    # time for the first tick on a busy machine
    async with in_containers(tmp_path, cancelled=60, timed_out=4, begun=2) as executors:
        containers, token = held() - before, CancellationToken()
        calls = [asyncio.create_task(run(executor, TICKS, token=token)) for executor in executors[:2]]
        await asyncio.gather(*(first_tick(executor.work_dir) for executor in executors[:2]))
        calls += [asyncio.create_task(run(executor, TICKS)) for executor in executors[2:4]]
        await asyncio.gather(*(first_tick(executor.work_dir) for executor in executors[2:4]))
        engine.hang()
        try:
            token.cancel()
            calls += [asyncio.create_task(run(executor, "print('ran')")) for executor in executors[4:]]
            async with asyncio.timeout(BOUND):
                results = await asyncio.gather(*calls)
        finally:
            engine.go_on()
        for result in results:
            assert_says_it_is_lost(result)
        outcomes = [result.outcome for result in results]
        assert outcomes[:4] == [Outcome.CANCELLED] * 2 + [Outcome.TIMED_OUT] * 2
        assert set(outcomes[4:]) <= {Outcome.TIMED_OUT, Outcome.LOST}
        for executor in executors:
            # one by one: a block's time is short here, and includes the start of an interpreter
            await assert_recovers(executor)
        await asyncio.to_thread(wait_until, lambda: not held() & containers, seconds=BOUND)


@pytest.mark.long
async def test_a_block_ends_with_its_container_where_the_engine_leaves_the_output_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine_that_can_hang(tmp_path, endless="/exec/") as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.url)
        before = held()
        async with in_containers(tmp_path, lost=BOUND) as executors:
            calls = [asyncio.create_task(run(executor, TICKS)) for executor in executors]
            await asyncio.gather(*(first_tick(executor.work_dir) for executor in executors))
            await asyncio.to_thread(KINDS["docker"].lose, held() - before)
            for result in await asyncio.gather(*calls):
                assert result.outcome is Outcome.LOST
                assert_says_it_is_lost(result)
            for executor in executors:
                await assert_recovers(executor)
