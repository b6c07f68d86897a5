from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable

import pytest
from autogen_core import CancellationToken

from codeact_team.core.aio import FairLock, Timer, streamed, to_the_end, until_cancelled


async def test_to_the_end_returns_and_raises() -> None:
    async def fail() -> None:
        raise KeyError("said")

    assert await to_the_end(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(KeyError):
        await to_the_end(fail())


async def test_until_cancelled_returns_raises_and_heeds_the_token() -> None:
    token, ended = CancellationToken(), asyncio.Event()

    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    assert await until_cancelled(asyncio.sleep(0, "done"), token) == "done"
    waiting = asyncio.create_task(until_cancelled(wait(), token))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    token.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended.is_set()
    with pytest.raises(asyncio.CancelledError):
        await until_cancelled(wait(), token)


async def test_to_the_end_is_not_cut_short_by_any_number_of_cancellations() -> None:
    finished = asyncio.Event()
    go = asyncio.Event()

    async def work() -> None:
        await go.wait()
        finished.set()

    task = asyncio.create_task(to_the_end(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert finished.is_set()


async def test_to_the_end_tells_of_a_failure_behind_a_cancellation() -> None:
    async def fail() -> None:
        await asyncio.sleep(0.01)
        raise KeyError("said")

    task = asyncio.create_task(to_the_end(fail()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    # asyncio makes a new exception for who awaits the task
    chain: list[BaseException | None] = [caught.value]
    while chain[-1] is not None:
        chain.append(chain[-1].__cause__ or chain[-1].__context__)
    assert any(isinstance(error, KeyError) for error in chain)


async def test_turns_are_in_the_order_of_asking() -> None:
    turns, order = FairLock(), list[int]()

    async def take(number: int) -> None:
        async with turns:
            order.append(number)
            await asyncio.sleep(0)
            assert order[-1] == number

    await asyncio.gather(*(take(number) for number in range(20)))
    assert order == list(range(20))


async def test_a_cancelled_wait_passes_the_turn_on() -> None:
    turns = FairLock()

    async def take() -> None:
        async with turns:
            await asyncio.sleep(0)

    async with turns:
        waiting = [asyncio.create_task(take()) for _ in range(5)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        waiting[3].cancel()
    # in the very moment in which its turn comes
    waiting[1].cancel()
    results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 5)
    assert [isinstance(result, asyncio.CancelledError) for result in results] == [
        True,
        True,
        False,
        True,
        False,
    ]
    await asyncio.wait_for(take(), 5)


async def test_the_turn_is_passed_on_after_an_error() -> None:
    turns = FairLock()
    with pytest.raises(KeyError):
        async with turns:
            raise KeyError
    async with asyncio.timeout(5), turns:
        pass


@pytest.mark.parametrize("places", [1, 3])
def test_turns_across_event_loops(places: int) -> None:
    turns, holders, most = FairLock(places), set[int](), list[int]()
    taken = 0

    async def take(number: int, dice: random.Random) -> None:
        nonlocal taken
        async with turns:
            holders.add(number)
            most.append(len(holders))
            taken += 1
            try:
                await asyncio.sleep(dice.random() * 0.0005)
            finally:
                holders.discard(number)

    async def use(number: int) -> None:
        dice = random.Random(number)
        for _ in range(60):
            task = asyncio.create_task(take(number, dice))
            if dice.random() < 0.5:
                # at any moment: a turn must never be lost
                await asyncio.sleep(dice.random() * 0.001)
                task.cancel()
            await asyncio.wait({task})

    threads = [threading.Thread(target=asyncio.run, args=(use(number),)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads), "a turn was lost"
    assert max(most) == places
    assert taken > 100


async def test_a_timer_does_not_go_on_while_it_is_paused_by_anybody() -> None:
    fired = asyncio.Event()
    timer = Timer(asyncio.get_running_loop().time() + 0.02, fired.set)
    with timer.paused():
        with timer.paused():
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.1)
        assert not fired.is_set()
    await fired.wait()


async def test_a_closed_timer_stays_closed_after_a_pause() -> None:
    called: list[None] = []
    timer = Timer(asyncio.get_running_loop().time() + 0.01, lambda: called.append(None))
    with timer.paused():
        timer.close()
    await asyncio.sleep(0.1)
    assert not called


async def test_a_timer_can_be_told_how_much_is_left_also_in_a_pause() -> None:
    fired = asyncio.Event()
    timer = Timer(asyncio.get_running_loop().time() + 3600, fired.set)
    with timer.paused():
        timer.left = 0.01
        await asyncio.sleep(0.05)
        assert (fired.is_set(), timer.left) == (False, 0.01)
    await fired.wait()
    assert timer.closed
    timer.left = 0.01
    assert timer.left <= 0.01


async def test_a_timer_that_has_fired_does_so_once() -> None:
    called: list[None] = []
    timer = Timer(asyncio.get_running_loop().time(), lambda: called.append(None))
    await asyncio.sleep(0.05)
    with timer.paused():
        pass
    await asyncio.sleep(0.05)
    assert called == [None]


async def test_a_stream_yields_what_is_emitted_when_it_is_asked_for_and_then_the_result() -> None:
    emitted: list[int] = []

    async def work(emit: Callable[[int], Awaitable[None]]) -> str:
        for number in range(3):
            emitted.append(number)
            await emit(number)
        return "done"

    read: list[int | str] = []
    async for item in streamed(work):
        read.append(item)
        await asyncio.sleep(0)
        # nothing runs ahead of whoever reads
        assert emitted == [item for item in read if item != "done"]
    assert read == [0, 1, 2, "done"]


async def test_a_stream_that_is_closed_or_cancelled_ends_its_work_first() -> None:
    ended: list[str] = []

    async def work(emit: Callable[[int], Awaitable[None]]) -> None:
        try:
            await emit(1)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append("once")

    stream = streamed(work)
    assert await anext(stream) == 1
    await stream.aclose()
    assert ended == ["once"]

    async def read() -> None:
        async for _ in streamed(work):
            pass

    reading = asyncio.create_task(read())
    await asyncio.sleep(0.01)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert ended == ["once", "once"]


async def test_a_stream_raises_what_its_work_raises() -> None:
    async def work(emit: Callable[[int], Awaitable[None]]) -> None:
        await emit(1)
        raise KeyError("said")

    stream = streamed(work)
    assert await anext(stream) == 1
    with pytest.raises(KeyError):
        await anext(stream)
