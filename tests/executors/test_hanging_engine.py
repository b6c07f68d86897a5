"""What becomes of a block whose engine hangs: it returns in time, and says what is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import closing
from pathlib import Path

import pytest
from autogen_core import CancellationToken
from support.executing import KINDS, Kind, run, wait_until
from support.forwarding import Engine, engine_that_can_hang
from support.waiting import first_tick

from codeact_team.execution import ExecutionResult, Outcome, SessionResult
from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.sandboxes.docker.engine import connect, engine_url

pytestmark = pytest.mark.docker

BOUND = 30
"""Seconds, on a busy machine, for what takes at most the limit of a second and five more. It once took 91."""
TICKS = "import time\nwhile True:\n    open('tick', 'w').write(str(time.time())); time.sleep(0.01)"


@pytest.fixture(params=["docker", "docker-session"])
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Engine]:
    with engine_that_can_hang(tmp_path) as engine:
        monkeypatch.setenv("DOCKER_HOST", engine.url)
        yield engine
        engine.go_on()


@pytest.fixture
async def executor(kind: Kind, engine: Engine, tmp_path: Path) -> AsyncGenerator[SandboxedCodeExecutor]:
    executor = kind.make(work_dir=tmp_path / "workspace", timeout=1)
    yield executor
    engine.go_on()
    await executor.stop()


async def test_a_container_that_was_paused_is_named_as_the_reason(
    executor: SandboxedCodeExecutor, kind: Kind
) -> None:
    (container,) = await started(executor, kind)
    with closing(connect(engine_url())) as client:
        client.pause(container)
    result = await run(executor, "print('ran')")
    assert " paused" in result.output
    assert_consistent(result)
    assert (await run(executor, "print('next')")).output == "next\n"


async def started(executor: SandboxedCodeExecutor, kind: Kind) -> set[str]:
    """Start it, and return its container."""
    before = kind.held()
    await executor.start()
    return kind.held() - before


def assert_consistent(result: ExecutionResult) -> None:
    says_lost = "was lost: " in result.output
    assert says_lost
    if isinstance(result, SessionResult):
        assert result.state_lost


async def assert_recovers(
    executor: SandboxedCodeExecutor, engine: Engine, kind: Kind, containers: set[str]
) -> None:
    engine.go_on()
    assert (await run(executor, "print('next')")).output == "next\n"
    await asyncio.to_thread(wait_until, lambda: not kind.held() & containers, seconds=BOUND)


async def test_a_block_begun_on_an_engine_that_hangs_returns_in_time(
    executor: SandboxedCodeExecutor, engine: Engine, kind: Kind
) -> None:
    containers = await started(executor, kind)
    engine.hang()
    async with asyncio.timeout(BOUND):
        result = await run(executor, "print('ran')")
    assert result.outcome in (Outcome.TIMED_OUT, Outcome.LOST)
    assert_consistent(result)
    await assert_recovers(executor, engine, kind, containers)


@pytest.mark.parametrize("by_token", [False, True], ids=["time over", "cancelled"])
async def test_a_block_whose_engine_hangs_under_it_returns_in_time(
    executor: SandboxedCodeExecutor, engine: Engine, kind: Kind, by_token: bool
) -> None:
    containers, token = await started(executor, kind), CancellationToken()
    call = asyncio.create_task(run(executor, TICKS, token=token))
    await first_tick(executor.work_dir)
    engine.hang()
    if by_token:
        token.cancel()
    async with asyncio.timeout(BOUND):
        result = await call
    assert result.outcome is (Outcome.CANCELLED if by_token else Outcome.TIMED_OUT)
    assert_consistent(result)
    await assert_recovers(executor, engine, kind, containers)
