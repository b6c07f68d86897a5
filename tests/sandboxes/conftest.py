"""A sandbox for the tests that need none of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator

import pytest
from sandboxes import confined_host
from sandboxes.confined_support import confined, skip_if_not_confined

from codeact_team.sandbox.confined import control
from codeact_team.sandbox.confined.sandbox import ConfinedSandbox

Supervisors = Callable[[], list[int]]


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Generator[ConfinedSandbox]:
    """One for all tests that leave it usable; from the event loop of each."""
    skip_if_not_confined()
    sandbox = confined(tmp_path_factory.mktemp("workspace"), workspace_mib=1)
    asyncio.run(sandbox.start())
    yield sandbox
    asyncio.run(sandbox.stop())


@pytest.fixture
def supervisors(monkeypatch: pytest.MonkeyPatch) -> Supervisors:
    """The zygote and the supervising processes of this test: what others have left in this process goes on beside them."""
    monkeypatch.setattr(control, "_current", None)
    others = confined_host.supervisors()
    return lambda: [pid for pid in confined_host.supervisors() if pid not in others]
