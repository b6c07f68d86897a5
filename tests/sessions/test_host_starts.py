"""Many sessions that are started at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from support.executing import why_not_confined

from codeact_team.sandbox.base import STARTS_AT_ONCE, Process
from codeact_team.sandbox.confined.config import ConfinedSandboxConfig
from codeact_team.sandbox.confined.sandbox import ConfinedSandbox
from codeact_team.session.host import Session


async def test_an_interpreter_begins_to_start_when_there_is_room_for_it(tmp_path: Path) -> None:
    # fifty at once took longer than the time that each of them has
    if (reason := await asyncio.to_thread(why_not_confined)) is not None:
        pytest.skip(reason)
    starting = 0
    most: list[int] = []

    class Counted(ConfinedSandbox):
        async def spawn(
            self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, supervises: bool = False
        ) -> Process:
            nonlocal starting
            starting += supervises
            most.append(starting)
            return await super().spawn(argv, env=env, supervises=supervises)

    async def start() -> None:
        nonlocal starting
        async with Counted(ConfinedSandboxConfig.model_validate({}), workspace=tmp_path) as sandbox:
            session = Session(sandbox)
            await session.start()
            starting -= 1
            await session.aclose()

    await asyncio.gather(*(start() for _ in range(STARTS_AT_ONCE + 4)))
    assert 1 <= max(most) <= STARTS_AT_ONCE
