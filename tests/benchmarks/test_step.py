"""How far a reader has to go to follow one step of a recorded run: files, changes of file, calls of functions."""

from __future__ import annotations

import contextlib
import io
import itertools
import sys
import threading
from pathlib import Path
from types import FrameType

import pytest
from autogen_agentchat.messages import CodeExecutionEvent
from rich.console import Console
from rich.table import Table

import codeact_team
from codeact_team.cli.app import app
from codeact_team.core.effects import Dispatcher, Event

pytestmark = pytest.mark.benchmark

PACKAGE = f"{Path(codeact_team.__file__).parent}/"
GOALS = {"files": 35, "changes of file": 220, "calls": 700}


class Calls:
    """The files of the functions of the package that are called, in order, and where the steps end."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.ends: list[int] = []

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        # a coroutine or generator that goes on is no call
        if event == "call" and file.startswith(PACKAGE) and frame.f_lasti <= 4:
            self.files.append(file)

    def steps(self) -> list[list[str]]:
        return [self.files[one:other] for one, other in itertools.pairwise(self.ends)]


def test_one_step_of_a_recorded_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, emit = Calls(), Dispatcher.emit

    def noting(self: Dispatcher, event: Event) -> None:
        if isinstance(getattr(event, "message", None), CodeExecutionEvent):
            calls.ends.append(len(calls.files))
        emit(self, event)

    monkeypatch.setattr(Dispatcher, "emit", noting)
    threading.setprofile(calls)
    sys.setprofile(calls)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            app(["run", "quickstart-codeact", "--run-dir", str(tmp_path)])
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    # the first step pays for what is made once
    step = calls.steps()[-1]
    changes = sum(one != other for one, other in itertools.pairwise(step))
    found = dict(zip(GOALS, (len({*step}), changes, len(step)), strict=True))
    table = Table("", "found", "goal", title="from one CodeExecutionEvent to the next")
    for name, number in found.items():
        table.add_row(name, f"{number:,}", f"{GOALS[name]:,}")
    Console().print(table)
