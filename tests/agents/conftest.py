from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest
from support.executing import why_not_confined

from codeact_team.executors import ConfinedSessionCodeExecutor


@pytest.fixture(scope="module")
def shared_session(tmp_path_factory: pytest.TempPathFactory) -> Generator[ConfinedSessionCodeExecutor]:
    """An executor for all tests of a module."""
    if (reason := why_not_confined()) is not None:
        pytest.skip(reason)
    executor = ConfinedSessionCodeExecutor(work_dir=tmp_path_factory.mktemp("workspace"), timeout=30)
    yield executor
    asyncio.run(executor.stop())


@pytest.fixture
async def session(shared_session: ConfinedSessionCodeExecutor) -> ConfinedSessionCodeExecutor:
    """The module's executor, without what earlier tests have left in its interpreter."""
    await shared_session.restart()
    return shared_session
