from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path

import pytest
from support.executing import ALL_KINDS, KINDS, Kind, goes_on, is_long_there, why_not_confined
from support.executing import zygote as zygote

from codeact_team.executors import block_process
from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.executors.session import InterpreterCodeExecutor
from codeact_team.files import trees
from codeact_team.session import host as escalation

MORE_LANGUAGES = {"sorted": "sort", "twice": """sh -c 'sh "$0"; sh "$0"'"""}


def pytest_itemcollected(item: pytest.Item) -> None:
    if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        if is_long_there(item.obj, item.callspec.params):
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="session", params=ALL_KINDS)
def kind(request: pytest.FixtureRequest) -> Generator[Kind]:
    """Every executor in turn. Afterwards nothing of it is left running."""
    if request.param.startswith("confined") and (reason := why_not_confined()) is not None:
        pytest.skip(reason)
    kind = KINDS[request.param]
    before = kind.held()
    yield kind
    assert kind.held() == before


@pytest.fixture(scope="session")
def shared_executor(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Generator[SandboxedCodeExecutor]:
    """One for all tests of a worker, from the event loop of each."""
    more = {} if kind.name.endswith("session") else {"languages": MORE_LANGUAGES}
    executor = kind.make(work_dir=tmp_path_factory.mktemp("workspace"), timeout=30, **more)
    yield executor
    asyncio.run(executor.stop())


@pytest.fixture(scope="module")
def modules_executor(shared_executor: SandboxedCodeExecutor, kind: Kind) -> SandboxedCodeExecutor:
    """The shared one, without the variables of other modules' tests."""
    if kind.name.endswith("session"):
        asyncio.run(shared_executor.restart())
    return shared_executor


@pytest.fixture
def executor(modules_executor: SandboxedCodeExecutor) -> SandboxedCodeExecutor:
    """One for tests that leave it usable. Its workspace is empty at first."""
    return with_empty_workspace(modules_executor)


@pytest.fixture
def session(executor: InterpreterCodeExecutor) -> InterpreterCodeExecutor:
    """The executor, known to be one with an interpreter."""
    return executor


@pytest.fixture
def work_dir(executor: SandboxedCodeExecutor) -> Path:
    """The workspace of ``executor``."""
    return executor.work_dir


@pytest.fixture(scope="session")
def shared_hasty(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Generator[SandboxedCodeExecutor]:
    executor = kind.make(work_dir=tmp_path_factory.mktemp("hasty"), timeout=1)
    yield executor
    asyncio.run(executor.stop())


@pytest.fixture
async def hasty(shared_hasty: SandboxedCodeExecutor) -> SandboxedCodeExecutor:
    """One with as little time as can be set. Its workspace is empty at first, and its interpreter has started."""
    if isinstance(shared_hasty, InterpreterCodeExecutor):
        assert await goes_on(shared_hasty)
    return with_empty_workspace(shared_hasty)


@pytest.fixture(scope="session")
def small(kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Generator[SandboxedCodeExecutor]:
    """One with low limits."""
    executor = kind.make(work_dir=tmp_path_factory.mktemp("small"), timeout=10, **kind.small)
    yield executor
    asyncio.run(executor.stop())


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that does not end by its interrupt is killed soon."""
    for module in (block_process, escalation):
        monkeypatch.setattr(module, "INTERRUPT_GRACE", 0.1)


def with_empty_workspace(executor: SandboxedCodeExecutor) -> SandboxedCodeExecutor:
    for path in executor.work_dir.iterdir():
        if path.is_dir() and not path.is_symlink():
            trees.remove(str(path))
        else:
            path.unlink()
    return executor
