from __future__ import annotations

from collections.abc import AsyncGenerator, Generator

import pytest
from standalone_sandbox import SandboxKind, held
from support.executing import why_not_confined
from support.executing import zygote as zygote

from codeact_team import AsyncSandbox, SyncSandbox, open_sandbox

DOCKER_TOO = pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.long])


@pytest.fixture(params=[DOCKER_TOO, "confined"])
def kind(request: pytest.FixtureRequest) -> Generator[SandboxKind]:
    """Each kind of sandbox in turn, Docker in long tests where they do not ask for it. Afterwards nothing of it is left running."""
    if request.param == "confined" and (reason := why_not_confined()) is not None:
        pytest.skip(reason)
    before = held(request.param)
    yield request.param
    assert held(request.param) == before


@pytest.fixture
async def sandbox(kind: SandboxKind) -> AsyncGenerator[AsyncSandbox]:
    """One that has just been opened."""
    async with open_sandbox(kind) as opened:
        yield opened


@pytest.fixture
def sync_sandbox(kind: SandboxKind) -> Generator[SyncSandbox]:
    """The same for tests without an event loop."""
    with open_sandbox(kind) as opened:
        yield opened
