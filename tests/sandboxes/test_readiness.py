"""Waiting for a descriptor, in whatever event loop somebody waits."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Generator

import pytest
from support.waiting import until

from codeact_team.sandbox.readiness import Readiness


class Pipe:
    """A pipe, and what waits for its end that is read."""

    def __init__(self) -> None:
        self.read, self.write = os.pipe()
        self.readiness = Readiness(self.read)

    def fill(self) -> None:
        os.write(self.write, b"x")

    async def take(self) -> bytes:
        await self.readiness.wait()
        return os.read(self.read, 1)


@pytest.fixture
def pipe() -> Generator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.readiness.close()
    os.close(pipe.read)
    os.close(pipe.write)


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))


def test_a_wait_ends_in_each_of_several_event_loops(pipe: Pipe) -> None:
    async def wait() -> None:
        for _ in range(3):
            asyncio.get_running_loop().call_soon(pipe.fill)
            assert await pipe.take() == b"x"

    before = descriptors()
    for _ in range(3):
        asyncio.run(wait())
    pipe.readiness.close()
    assert descriptors() == before


async def test_all_who_wait_go_on(pipe: Pipe) -> None:
    waiting = [asyncio.create_task(pipe.readiness.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    pipe.fill()
    await asyncio.gather(*waiting)


async def test_a_wait_that_is_cancelled_ends_and_takes_nothing_from_others(pipe: Pipe) -> None:
    one, other = (asyncio.create_task(pipe.take()) for _ in range(2))
    await asyncio.sleep(0)
    one.cancel()
    pipe.fill()
    with pytest.raises(asyncio.CancelledError):
        await one
    assert await other == b"x"


async def test_what_comes_while_nobody_waits_costs_the_loop_one_turn_and_is_there_later(pipe: Pipe) -> None:
    pipe.fill()
    assert await pipe.take() == b"x"
    before = descriptors()
    pipe.fill()
    # the loop has seen it once, and watches no more
    await until(lambda: descriptors() < before)
    assert await pipe.take() == b"x"


async def test_who_waits_when_it_is_closed_goes_on(pipe: Pipe) -> None:
    waiting = asyncio.create_task(pipe.readiness.wait())
    await asyncio.sleep(0)
    pipe.readiness.close()
    await waiting


def test_it_can_be_closed_when_the_loop_of_who_waits_is(pipe: Pipe) -> None:
    loop = asyncio.new_event_loop()
    waiting = loop.create_task(pipe.readiness.wait())
    loop.run_until_complete(asyncio.sleep(0))
    waiting.cancel()
    loop.run_until_complete(asyncio.gather(waiting, return_exceptions=True))
    before = descriptors()
    loop.close()
    pipe.readiness.close()
    assert descriptors() < before


def test_it_can_be_closed_while_another_thread_waits(pipe: Pipe) -> None:
    begun = threading.Event()

    async def wait() -> None:
        asyncio.get_running_loop().call_later(0.01, begun.set)
        await pipe.readiness.wait()

    thread = threading.Thread(target=asyncio.run, args=(wait(),))
    thread.start()
    assert begun.wait(10)
    pipe.readiness.close()
    thread.join(10)
    assert not thread.is_alive()
