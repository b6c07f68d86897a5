from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path

import pytest
from support.executing import ALL_KINDS, KINDS, Kind, why_not_confined

from codeact_team.executors.base import SandboxedCodeExecutor

MORE_LANGUAGES = {"sorted": "sort", "twice": """sh -c 'sh "$0"; sh "$0"'"""}


@pytest.fixture(scope="module", params=ALL_KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    """Every executor in turn."""
    if request.param.startswith("confined") and (reason := why_not_confined()) is not None:
        pytest.skip(reason)
    return KINDS[request.param]


@pytest.fixture(scope="module")
def work_dir(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workspace of ``executor``."""
    return tmp_path_factory.mktemp("workspace")


@pytest.fixture(scope="module")
def executor(kind: Kind, work_dir: Path) -> Generator[SandboxedCodeExecutor]:
    """One for all tests that leave it as they found it; from the event loop of each."""
    more = {} if kind.name.endswith("session") else {"languages": MORE_LANGUAGES}
    executor = kind.make(work_dir=work_dir, timeout=30, **more)
    yield executor
    asyncio.run(executor.stop())


@pytest.fixture(scope="module")
def hasty_dir(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workspace of ``hasty``."""
    return tmp_path_factory.mktemp("hasty")


@pytest.fixture(scope="module")
def hasty(kind: Kind, hasty_dir: Path) -> Generator[SandboxedCodeExecutor]:
    """One with little time."""
    executor = kind.make(work_dir=hasty_dir, timeout=1)
    yield executor
    asyncio.run(executor.stop())


@pytest.fixture(scope="module")
def small(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Generator[SandboxedCodeExecutor]:
    """One with low limits."""
    executor = kind.make(work_dir=tmp_path_factory.mktemp("small"), timeout=10, **kind.small)
    yield executor
    asyncio.run(executor.stop())
