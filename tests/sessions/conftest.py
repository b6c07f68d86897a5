from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from support.interpreter import Gone, RunningInterpreter
from support.supervisor import SharedSupervisor, Supervised, in_docker, supervised

_BEGIN = "_at_first = {*globals(), '_at_first', '_name', 'tools'}"
_FORGET = "for _name in {*globals()} - _at_first: del globals()[_name]"


class Shared:
    """An interpreter for the tests of a module, one after the other: each begins without variables and with block 1."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._running: RunningInterpreter | None = None

    def get(self) -> RunningInterpreter:
        if self._running is not None and self._running.in_a_block:
            # a test has failed meanwhile; it may have hung, and the next would hang as well
            self.close()
        if self._running is not None:
            try:
                self._running.run(_FORGET)
                self._running.blocks = 0
            except (AssertionError, Gone, OSError):
                self.close()
        if self._running is None:
            self._running = RunningInterpreter(self._workspace)
            self._running.run(_BEGIN)
            self._running.blocks = 0
        return self._running

    def close(self) -> None:
        if self._running is not None:
            self._running.close()
            self._running = None


@pytest.fixture(scope="module")
def shared_interpreter(tmp_path_factory: pytest.TempPathFactory) -> Generator[Shared]:
    shared = Shared(tmp_path_factory.mktemp("interpreter"))
    yield shared
    shared.close()


@pytest.fixture
def interpreter(shared_interpreter: Shared) -> RunningInterpreter:
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
