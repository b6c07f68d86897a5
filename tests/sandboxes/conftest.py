"""A sandbox for the tests that need none of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Generator

import pytest
from sandboxes.confined_support import confined, skip_if_not_confined

from codeact_team.sandboxes.confined import ConfinedSandbox


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Generator[ConfinedSandbox]:
    """One for all tests that leave it usable; from the event loop of each."""
    skip_if_not_confined()
    sandbox = confined(tmp_path_factory.mktemp("workspace"), workspace_mib=1)
    asyncio.run(sandbox.start())
    yield sandbox
    asyncio.run(sandbox.stop())
