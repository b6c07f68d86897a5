"""Runs as they are kept, without running anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autogen_core.models import RequestUsage

from codeact_team.core.effects import Event
from codeact_team.journal.journal import Journal
from codeact_team.journal.recorder import Record, Recorder
from codeact_team.journal.result import RunEnding, RunResult
from codeact_team.journal.run_directory import About


def recorder(runs: Path, name: str, *events: Event, task: str = "Look.") -> Recorder:
    """What writes the journal of a run, with some events in it already."""
    about = About(
        id=name, task=task, config="team.yaml", working_directory="/", versions={"codeact-team": "1.0"}
    )
    made = Recorder.create(runs, about, "provider: any\n", {})
    for event in events:
        made(event)
    return made


def journal_of(recorder: Recorder) -> Journal:
    """The journal of a new run."""
    return Journal(Record(recorder), recorder.requests)


def result(ending: RunEnding = RunEnding.ACCEPTED, **more: Any) -> RunResult:
    settings: dict[str, Any] = {"messages": 3, "seconds": 2.5, "steps": 2, **more}
    return RunResult(ending=ending, usage=RequestUsage(1200, 34), **settings)
