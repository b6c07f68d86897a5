from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from support.interpreter import RunningInterpreter, SharedInterpreter
from support.supervisor import SharedSupervisor, Supervised, in_docker, supervised


@pytest.fixture(scope="module")
def shared_interpreter(tmp_path_factory: pytest.TempPathFactory) -> Generator[SharedInterpreter]:
    shared = SharedInterpreter(tmp_path_factory.mktemp("interpreter"))
    yield shared
    shared.close()


@pytest.fixture
def interpreter(shared_interpreter: SharedInterpreter) -> RunningInterpreter:
    """One that may have run other tests."""
    return shared_interpreter.get()


@pytest.fixture
def fresh_interpreter(tmp_path: Path) -> Generator[RunningInterpreter]:
    """One that has run nothing."""
    with RunningInterpreter(tmp_path) as running:
        yield running


@pytest.fixture(scope="module")
def shared_supervisor(tmp_path_factory: pytest.TempPathFactory) -> Generator[SharedSupervisor]:
    shared = SharedSupervisor(tmp_path_factory.mktemp("supervisor"))
    yield shared
    shared.close()


@pytest.fixture
def supervisor(shared_supervisor: SharedSupervisor) -> Supervised:
    """One that may have run other tests."""
    return shared_supervisor.get()


@pytest.fixture
def workspace(shared_supervisor: SharedSupervisor) -> Path:
    """That of :func:`supervisor`."""
    return shared_supervisor.workspace


@pytest.fixture
def fresh_supervisor(tmp_path: Path) -> Generator[Supervised]:
    """One that has run nothing."""
    with supervised(tmp_path) as one:
        yield one


@pytest.fixture(scope="module")
def shared_container(tmp_path_factory: pytest.TempPathFactory) -> Generator[SharedSupervisor]:
    directory = tmp_path_factory.mktemp("container")
    shared = SharedSupervisor(directory, prefix=in_docker(), python="python3")
    yield shared
    shared.close()


@pytest.fixture
def in_container(shared_container: SharedSupervisor) -> Supervised:
    """One in a container, which may have run other tests."""
    return shared_container.get()
