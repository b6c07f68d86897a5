from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from support.liar import Liar

from codeact_team.sessions.protocol import Kind, frame
from codeact_team.sessions.watch import Watch

LONG = 600.0


class Watched:
    """A block that nobody runs."""

    def __init__(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        self.sent: list[bytes] = []
        self.expired = asyncio.Event()
        self.stop: asyncio.Future[None] = loop.create_future()
        self.watch = Watch(Liar(b"", ends=False), self._send, stop=self.stop, deadline=loop.time() + seconds)
        self.watch.on_expiry = self.expired.set

    async def _send(self, data: bytes) -> None:
        self.sent.append(data)


@asynccontextmanager
async def watched(seconds: float) -> AsyncGenerator[Watched]:
    one = Watched(seconds)
    try:
        yield one
    finally:
        await one.watch.aclose()
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_when_the_time_is_over_the_block_is_interrupted() -> None:
    async with watched(0.01) as one, asyncio.timeout(10):
        await one.expired.wait()
        # what those who are told do about it comes after the interrupt
        await asyncio.sleep(0)
        assert one.watch.timed_out
        assert one.sent == [frame(Kind.INTERRUPT)]


async def test_time_does_not_count_within_a_pause() -> None:
    async with watched(0.05) as one:
        with one.watch.paused():
            await asyncio.sleep(0.2)
            assert not one.expired.is_set()
        async with asyncio.timeout(10):
            await one.expired.wait()
        assert one.watch.timed_out


async def test_pauses_may_be_nested_and_overlap() -> None:
    async with watched(0.05) as one:
        first, second = one.watch.paused(), one.watch.paused()
        with first:
            with one.watch.paused():
                second.__enter__()
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.1)
        assert not one.expired.is_set()
        second.__exit__(None, None, None)
        async with asyncio.timeout(10):
            await one.expired.wait()


async def test_what_was_left_before_a_pause_is_left_after_it() -> None:
    async with watched(LONG) as one:
        with one.watch.paused():
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.05)
        assert not one.expired.is_set()


async def test_a_pause_may_end_by_an_error() -> None:
    async with watched(0.01) as one:
        with pytest.raises(ValueError, match="no"), one.watch.paused():
            raise ValueError("no")
        async with asyncio.timeout(10):
            await one.expired.wait()


async def test_a_stop_counts_within_a_pause() -> None:
    async with watched(LONG) as one, asyncio.timeout(10):
        with one.watch.paused():
            one.stop.cancel()
            await one.expired.wait()
        assert not one.watch.timed_out
        await asyncio.sleep(0.05)
        assert not one.watch.timed_out


async def test_a_pause_that_outlasts_the_watch_starts_nothing() -> None:
    async with watched(0.01) as one:
        with one.watch.paused():
            await one.watch.aclose()
        await asyncio.sleep(0.05)
        assert not one.expired.is_set()
