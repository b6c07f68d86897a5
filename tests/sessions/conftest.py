from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from support.interpreter import Gone, RunningInterpreter

_BEGIN = "_at_first = {*globals(), '_at_first', '_name', 'tools'}"
_FORGET = "for _name in {*globals()} - _at_first: del globals()[_name]"


class Shared:
    """An interpreter for the tests of a module, one after the other: each begins without variables."""

    def __init__(self, workspace: Path) -> None:
        self._workspace = workspace
        self._running: RunningInterpreter | None = None

    def get(self) -> RunningInterpreter:
        if self._running is not None:
            try:
                self._running.run(_FORGET)
            except (Gone, OSError):
                self.close()
        if self._running is None:
            self._running = RunningInterpreter(self._workspace)
            self._running.run(_BEGIN)
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
