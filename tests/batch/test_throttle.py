"""One ledger and one rate limit for all: when a call may begin, on a clock that goes on when nothing else does."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from codeact_team.batch.throttle import BatchLedger, BatchLimits, CallEnded, RateLimit
from codeact_team.core.accounting import ModelUsage


class _Skipping(selectors.SelectSelector):
    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.now += max(0.0, timeout or 0.0)
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose time goes on only while it has nothing to do."""

    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.now


def in_virtual_time(work: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await work()

    with asyncio.Runner(loop_factory=_Loop) as runner:
        runner.run(run())


async def call(
    rate: RateLimit, job: str, times: list[float], *, seconds: float = 0.0, tokens: int = 1
) -> None:
    await rate.admit(job)
    times.append(asyncio.get_running_loop().time())
    await asyncio.sleep(seconds)
    rate.ended(job, CallEnded(tokens=tokens))


def begins(limits: BatchLimits, calls: int, **how: Any) -> list[float]:
    """When so many calls begin that are asked for at once."""
    times: list[float] = []

    async def work() -> None:
        rate = RateLimit(limits)
        await asyncio.gather(*(call(rate, str(number), times, **how) for number in range(calls)))

    in_virtual_time(work)
    return [round(time, 3) for time in times]


def test_calls_at_the_same_time_are_limited() -> None:
    assert begins(BatchLimits(max_requests=2), 5, seconds=10) == [0, 0, 10, 10, 20]


def test_calls_in_a_minute_are_limited() -> None:
    assert begins(BatchLimits(requests_per_minute=2), 5, seconds=1) == [0, 0, 60, 60, 120]


def test_tokens_in_a_minute_are_limited_by_what_calls_have_used() -> None:
    times = begins(BatchLimits(tokens_per_minute=100, max_requests=1), 5, seconds=1, tokens=60)
    assert times == [0, 1, 61, 62, 122]


def test_a_server_with_too_many_requests_makes_all_wait_and_fewer_call_at_once() -> None:
    async def work() -> None:
        loop, rate = asyncio.get_running_loop(), RateLimit(BatchLimits())
        for job in "abcd":
            await rate.admit(job)
        rate.ended("a", CallEnded(is_limited=True, retry_after=7.0))
        rate.ended("b", CallEnded(is_limited=True, retry_after=5.0))
        waiting = [asyncio.create_task(rate.admit(job)) for job in "efg"]
        await asyncio.sleep(6.9)
        assert not any(task.done() for task in waiting)
        # two of half of four are under way still
        await asyncio.sleep(1)
        assert not any(task.done() for task in waiting)
        rate.ended("c", CallEnded(tokens=5))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [task.done() for task in waiting] == [True, True, False]
        rate.ended("d", CallEnded(tokens=5))
        await asyncio.gather(*waiting)
        assert loop.time() < 8

    in_virtual_time(work)


def test_what_a_dead_worker_had_under_way_is_given_back() -> None:
    async def work() -> None:
        rate = RateLimit(BatchLimits(max_requests=1))
        await rate.admit("a")
        waiting = asyncio.create_task(rate.admit("b"))
        await asyncio.sleep(0)
        rate.lost("a")
        await waiting
        # nobody can give it back twice
        rate.ended("a", CallEnded())
        third = asyncio.create_task(rate.admit("c"))
        await asyncio.sleep(1)
        assert not third.done()
        third.cancel()
        rate.ended("b", CallEnded())
        await rate.admit("d")

    in_virtual_time(work)


def test_what_a_job_has_spent_counts_once_when_it_goes_on_elsewhere() -> None:
    ledger = BatchLedger(BatchLimits(max_tokens=100, max_cost=1.0), "EUR")
    ledger.add(50, 0.25)
    ledger.enter("a", ModelUsage(completion_tokens=20))
    ledger.enter("a", ModelUsage(completion_tokens=30))
    assert ledger.tokens == 80
    # its journal is read from the beginning
    ledger.enter("a", ModelUsage(completion_tokens=20))
    assert (ledger.tokens, ledger.refusal()) == (70, None)
    ledger.enter("a", ModelUsage(completion_tokens=30))
    ledger.finish("a", 0, None)
    assert ledger.tokens == 80
    ledger.enter("b", ModelUsage(prompt_tokens=1, cost=1.0))
    assert ledger.cost == pytest.approx(1.25)
    assert ledger.refusal() == "the budget of the batch is used up: 1.2500 of 1.0000 EUR"
    ledger.enter("b", ModelUsage(prompt_tokens=1, completion_tokens=19, cost=1.0))
    assert ledger.refusal() == "the budget of the batch is used up: 100 of 100 tokens"
