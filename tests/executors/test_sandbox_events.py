"""What is told of the life of a sandbox and of the interpreter in it."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import pytest
from support.executing import Kind, one_part, run

from codeact_team.core.effects import Dispatcher, Event
from codeact_team.core.events import SandboxLost, SandboxStarted, SandboxStarting, SandboxStopped
from codeact_team.executors.base import SandboxedCodeExecutor


class Told:
    """What a dispatcher has emitted since it was asked last."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._events: list[Event] = []
        dispatcher.listen(self._events.append)

    def since(self) -> list[Event]:
        events = self._events.copy()
        self._events.clear()
        return events


@pytest.fixture
def executor(kind: Kind, tmp_path: Path) -> SandboxedCodeExecutor:
    return kind.make(work_dir=tmp_path)


@one_part
async def test_a_sandbox_is_told_of_when_it_starts_is_lost_and_stops(
    executor: SandboxedCodeExecutor, kind: Kind
) -> None:
    name = kind.make.__name__
    with Dispatcher() as dispatcher:
        told, before = Told(dispatcher), kind.held()
        await run(executor, "1")
        starting, started = told.since()
        assert isinstance(starting, SandboxStarting)
        assert isinstance(started, SandboxStarted)
        if kind.name.startswith("docker"):
            assert re.fullmatch("sha256:[0-9a-f]{64}", started.image or "")
            assert started.python is None
        else:
            assert (started.image, started.python) == (None, platform.python_version())
            assert started.view in ("in namespaces", "without namespaces")
        await run(executor, "1")
        assert told.since() == []
        kind.lose(kind.held() - before)
        await run(executor, "1")
        events = told.since()
        lost = [event for event in events if isinstance(event, SandboxLost)]
        assert [type(event) for event in events if event not in lost] == [SandboxStarting, SandboxStarted]
        assert [event.sandbox for event in lost] == [name]
        if kind.name.endswith("session"):
            await run(executor, "import os; os._exit(3)")
            await run(executor, "1")
            loss, started = told.since()
            assert isinstance(loss, SandboxLost)
            assert "exit code 3" in loss.reason
            assert isinstance(started, SandboxStarted)
        await executor.stop()
        (stopped,) = told.since()
        assert isinstance(stopped, SandboxStopped)
        assert stopped.sandbox == name
        await executor.stop()
        assert told.since() == []
