from __future__ import annotations

import asyncio

import pytest

from codeact_team.core.scope import Scope, register


class Part:
    def __init__(
        self, log: list[str], name: str, *, error: Exception | None = None, slow: bool = False
    ) -> None:
        self.log = log
        self.name = name
        self.error = error
        self.slow = slow
        register(self)

    async def start(self) -> None:
        if self.slow:
            await asyncio.sleep(60)
        if self.error is not None:
            raise self.error
        self.log.append(f"start {self.name}")

    async def stop(self) -> None:
        self.log.append(f"stop {self.name}")


async def test_stops_what_was_made_inside_last_first() -> None:
    log: list[str] = []
    Part(log, "outside")
    async with Scope() as scope:
        one = Part(log, "one")
        two = Part(log, "two")
        register(one)
        assert scope.owned == (one, two)
        assert log == []
    assert log == ["stop two", "stop one"]
    Part(log, "after")
    assert len(log) == 2


async def test_tasks_made_inside_register_with_it() -> None:
    log: list[str] = []

    async def agent() -> None:
        Part(log, "late")

    async with Scope():
        await asyncio.create_task(agent())
    assert log == ["stop late"]


async def test_scopes_nest() -> None:
    log: list[str] = []
    async with Scope():
        Part(log, "outer")
        async with Scope():
            Part(log, "inner")
        assert log == ["stop inner"]
        Part(log, "outer again")
    assert log == ["stop inner", "stop outer again", "stop outer"]


async def test_prewarm_starts_in_the_background() -> None:
    log: list[str] = []
    async with Scope() as scope:
        Part(log, "one")
        scope.prewarm()
        assert log == []
        await asyncio.sleep(0)
        assert log == ["start one"]
    assert log == ["start one", "stop one"]


async def test_what_cannot_start_ends_the_body_and_is_raised_itself() -> None:
    log: list[str] = []
    error = OSError("no engine")

    async def team() -> None:
        async with Scope() as scope:
            Part(log, "good")
            Part(log, "bad", error=error)
            scope.prewarm()
            await asyncio.sleep(60)

    with pytest.raises(OSError, match="no engine") as caught:
        await team()
    assert caught.value is error
    assert log == ["start good", "stop bad", "stop good"]


async def test_error_of_the_body_is_raised_itself_and_all_is_stopped() -> None:
    log: list[str] = []

    async def team() -> None:
        async with Scope() as scope:
            Part(log, "one", slow=True)
            scope.prewarm()
            await asyncio.sleep(0)
            raise KeyError

    with pytest.raises(KeyError):
        await team()
    assert log == ["stop one"]


async def test_error_of_the_body_keeps_its_cause() -> None:
    cause = OSError("nobody listens")
    with pytest.raises(ValueError, match="no connection") as raised:
        async with Scope():
            raise ValueError("no connection") from cause
    assert raised.value.__cause__ is cause


async def test_a_body_that_ends_does_not_wait_for_what_still_starts() -> None:
    log: list[str] = []
    async with asyncio.timeout(5):
        async with Scope() as scope:
            Part(log, "slow", slow=True)
            scope.prewarm()
            await asyncio.sleep(0)
    assert log == ["stop slow"]


async def test_cancellation_stops_all() -> None:
    log: list[str] = []

    async def team() -> None:
        async with Scope() as scope:
            Part(log, "one")
            scope.prewarm()
            await asyncio.sleep(60)

    task = asyncio.create_task(team())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["start one", "stop one"]
