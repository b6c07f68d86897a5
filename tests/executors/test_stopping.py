"""What stops the code of a call: whoever cancels it, its time, and a workspace that grows."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from autogen_core import CancellationToken

from codeact_team.executors.confined import ConfinedEnvironment, ConfinedExecutorConfig
from codeact_team.executors.running import Call

LONG = 600.0


class Watched:
    """A call whose block nobody runs."""

    def __init__(self, environment: ConfinedEnvironment, seconds: float) -> None:
        self.token = CancellationToken()
        self.call = Call(self.token, None, None, environment)
        self.call.begin_block(seconds)

    async def stopped(self) -> None:
        async with asyncio.timeout(10):
            await asyncio.wait({self.call.stop})


@asynccontextmanager
async def watched(seconds: float, work_dir: Path | None = None) -> AsyncGenerator[Watched]:
    directory = None if work_dir is None else str(work_dir)
    environment = ConfinedEnvironment(
        ConfinedExecutorConfig.model_validate({"work_dir": directory, "workspace_files": 1})
    )
    if work_dir is not None:
        await environment.quota.begin([work_dir])
    one = Watched(environment, seconds)
    try:
        yield one
    finally:
        await one.call.end()
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_pauses_may_be_nested_and_overlap() -> None:
    async with watched(0.05) as one:
        first, second = one.call.paused(), one.call.paused()
        with first:
            with one.call.paused():
                second.__enter__()
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.1)
        assert not one.call.stop.done()
        second.__exit__(None, None, None)
        await one.stopped()


async def test_what_was_left_before_a_pause_is_left_after_it() -> None:
    async with watched(LONG) as one:
        with one.call.paused():
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.05)
        assert not one.call.stop.done()


async def test_a_pause_may_end_by_an_error() -> None:
    async with watched(0.01) as one:
        with pytest.raises(ValueError, match="no"), one.call.paused():
            raise ValueError("no")
        await one.stopped()


async def test_a_cancellation_counts_within_a_pause() -> None:
    async with watched(LONG) as one:
        with one.call.paused():
            one.token.cancel()
            await one.stopped()
        assert not one.call.timed_out


async def test_a_pause_that_outlasts_its_block_does_not_change_the_next_ones_time() -> None:
    async with watched(0.01) as one:
        with one.call.paused():
            one.call.begin_block(LONG)
        await asyncio.sleep(0.05)
        assert not one.call.stop.done()
