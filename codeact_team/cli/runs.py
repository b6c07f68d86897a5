"""``codeact-team runs``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import ByteSize, TypeAdapter, ValidationError

from codeact_team.cli.file_lines import size_of
from codeact_team.cli.json_lines import print_json
from codeact_team.cli.screen import Screen
from codeact_team.errors import SettingError
from codeact_team.files.saving import readable
from codeact_team.runs.kept_runs import KeptRun, RunState, beyond, kept_runs
from codeact_team.visibility import cut

_DAY = 24 * 60 * 60
_MAX_TASK = 60
"""Characters of a task in a list."""
_STYLES = {
    RunState.RUNNING: "bold cyan",
    RunState.ACCEPTED: "green",
    RunState.NOT_ACCEPTED: "yellow",
    RunState.STOPPED: "yellow",
    RunState.PARKED: "bold yellow",
}


@dataclass(frozen=True)
class Wanted:
    """Which runs are listed.

    Attributes:
        states: What may have become of them; any if empty.
        task: What their task has in it, whatever the case.
        older_than: Days for which they have not gone on.
        beyond: Those that do not fit into this size with all that came after them, such as ``2GB``.
    """

    states: Sequence[str] = ()
    task: str | None = None
    older_than: float | None = None
    beyond: str | None = None

    def of(self, directory: Path) -> Iterator[KeptRun]:
        """The runs in a directory, the last first.

        Raises:
            SettingError: If no run can be meant.
        """
        states, size = [_state(name) for name in self.states], _size(self.beyond)
        runs = kept_runs(directory)
        if size is not None:
            # all of them take up space, whichever are wanted
            runs = beyond(runs, size)
        now = time.time()
        for run in runs:
            if (
                (not states or run.state in states)
                and (self.task is None or self.task.casefold() in run.task.casefold())
                and (self.older_than is None or now - run.changed > self.older_than * _DAY)
            ):
                yield run


def runs_command(screen: Screen, directory: Path, wanted: Wanted, *, prune: bool, as_json: bool) -> int:
    """List the runs that are kept in a directory, remove those listed if they are to be pruned, and return the exit code."""
    if prune and wanted == Wanted():
        raise SettingError(
            "--prune removes the runs that are listed: say which, such as by --older-than 30 or --beyond 2GB"
        )
    is_empty = True
    for run in wanted.of(directory):
        is_empty = False
        told = _as_json(run) if as_json else None
        size = run.size if prune else 0
        removed = run.remove() if prune else None
        if told is not None:
            print_json(told | ({} if removed is None else {"removed": removed}))
            continue
        _show(screen, run)
        if removed is not None:
            screen.text(f"  removed, {size_of(size)}" if removed else "  kept: it is running", "dim")
    if is_empty and not as_json:
        screen.notice("note", f"there are no such runs in {directory}")
    return 0


def _show(screen: Screen, run: KeptRun) -> None:
    about, result = run.about, run.result
    screen.text(f"{readable(run.id):20}  {run.state.value:12}", _STYLES.get(run.state, "red"), end="")
    if about is None or run.problem is not None:
        screen.text(f"  {readable(run.problem or '')}", "dim")
        return
    cells = [f"{'':>8}", f"{'':>14}"]
    seconds = time.time() - about.began if run.state is RunState.RUNNING else None
    if result is not None:
        tokens, seconds = result.usage.prompt_tokens + result.usage.completion_tokens, result.seconds
        cells = [
            f"{result.steps} step{' ' if result.steps == 1 else 's'}".rjust(8),
            f"{tokens:,} tokens".rjust(14),
        ]
        if result.cost is not None:
            cells.append(result.cost.to_text())
    cells.append(f"{'' if seconds is None else f'{seconds:,.1f} s':>10}")
    screen.text(f"  {'  '.join(cells)}", "dim", end="")
    screen.text(f"  {cut(' '.join((run.task or about.config).split()), _MAX_TASK)}")


def _as_json(run: KeptRun) -> dict[str, Any]:
    about, result = run.about, run.result
    return {
        "id": run.id,
        "path": str(run.directory.path),
        "state": run.state.value,
        "task": run.task if about else None,
        "config": None if about is None else about.config,
        "began": None if about is None else about.began,
        "seconds": None if result is None else round(result.seconds, 3),
        "steps": None if result is None else result.steps,
        "messages": None if result is None else result.messages,
        "usage": None if result is None else asdict(result.usage),
        "cost": None if result is None or result.cost is None else asdict(result.cost),
        "exit_code": None if result is None else result.exit_code,
        "stop_reason": None if result is None else result.stop_reason,
        "problem": run.problem,
    }


def _state(name: str) -> RunState:
    try:
        return RunState(name.replace("-", " ").replace("_", " "))
    except ValueError:
        known = ", ".join(state.value.replace(" ", "-") for state in RunState)
        raise SettingError(f"no run can be {name!r}: --state knows {known}") from None


def _size(text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return TypeAdapter(ByteSize).validate_python(text)
    except ValidationError:
        raise SettingError(f"{text!r} is no size: write it as 500MB or 2GB") from None
