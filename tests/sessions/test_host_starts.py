"""Many sessions that are started at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from support.executing import why_not_confined
from support.liar import Liar

from codeact_team.sandbox.base import STARTS_AT_ONCE, Process
from codeact_team.sandbox.confined.config import ConfinedSandboxConfig
from codeact_team.sandbox.confined.sandbox import ConfinedSandbox
from codeact_team.session.host import Session


class Starting:
    """How many interpreters were starting at once."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0

    def begin(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)

    async def end(self, session: Session) -> None:
        await session.start()
        self.now -= 1
        await session.aclose()


async def test_an_interpreter_begins_to_start_when_there_is_room_for_it() -> None:
    # fifty at once took longer than the time that each of them has
    starting = Starting()

    class Counted(Liar):
        async def supervise(self, *, plain: bool = False) -> Process:
            starting.begin()
            return await super().supervise(plain=plain)

    async def start() -> None:
        async with Counted(b"", ends=False) as sandbox:
            await starting.end(Session(sandbox))

    await asyncio.gather(*(start() for _ in range(3 * STARTS_AT_ONCE)))
    assert 1 <= starting.most <= STARTS_AT_ONCE


@pytest.mark.long
async def test_a_confined_interpreter_begins_to_start_when_there_is_room_for_it(tmp_path: Path) -> None:
    if (reason := await asyncio.to_thread(why_not_confined)) is not None:
        pytest.skip(reason)
    starting = Starting()

    class Counted(ConfinedSandbox):
        async def supervise(self, *, plain: bool = False) -> Process:
            starting.begin()
            return await super().supervise(plain=plain)

    async def start() -> None:
        async with Counted(ConfinedSandboxConfig.model_validate({}), workspace=tmp_path) as sandbox:
            await starting.end(Session(sandbox))

    await asyncio.gather(*(start() for _ in range(3 * STARTS_AT_ONCE)))
    assert 1 <= starting.most <= STARTS_AT_ONCE
