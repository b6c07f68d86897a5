from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path

import pytest
from support.executing import KINDS, Kind, why_not_confined

from codeact_team.executors.command_line import CommandLineCodeExecutor


@pytest.fixture(scope="module", params=[pytest.param("docker", marks=pytest.mark.docker), "confined"])
def kind(request: pytest.FixtureRequest) -> Kind:
    """Every executor in turn."""
    if request.param == "confined" and (reason := why_not_confined()) is not None:
        pytest.skip(reason)
    return KINDS[request.param]


@pytest.fixture(scope="module")
def work_dir(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workspace of ``executor``."""
    return tmp_path_factory.mktemp("workspace")


@pytest.fixture(scope="module")
def executor(kind: Kind, work_dir: Path) -> Generator[CommandLineCodeExecutor]:
    """One for all tests that leave it as they found it; from the event loop of each."""
    executor = kind.make(
        work_dir=work_dir, timeout=30, languages={"sorted": "sort", "twice": """sh -c 'sh "$0"; sh "$0"'"""}
    )
    yield executor
    asyncio.run(executor.stop())


@pytest.fixture(scope="module")
def hasty_dir(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The workspace of ``hasty``."""
    return tmp_path_factory.mktemp("hasty")


@pytest.fixture(scope="module")
def hasty(kind: Kind, hasty_dir: Path) -> Generator[CommandLineCodeExecutor]:
    """One with little time."""
    executor = kind.make(work_dir=hasty_dir, timeout=1)
    yield executor
    asyncio.run(executor.stop())


@pytest.fixture(scope="module")
def small(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Generator[CommandLineCodeExecutor]:
    """One with low limits."""
    executor = kind.make(work_dir=tmp_path_factory.mktemp("small"), timeout=10, **kind.small)
    yield executor
    asyncio.run(executor.stop())
