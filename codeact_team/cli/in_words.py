"""Files and results in words."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from codeact_team.core.accounting import tokens_in_words
from codeact_team.core.execution import CallOutcome
from codeact_team.journal.result import Costs, RunEnding, RunFile, RunResult
from codeact_team.text.amounts import counted, size_of

_MAX_FILES = 20
"""Files with a line each; more are summed up."""
_MAX_NAMES = 5
"""Files that are named in a line about many."""
_MAX_TEXT = 60
"""Characters of a call's arguments, or of its error."""


def shortened(text: str) -> str:
    """A text in one line, cut where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= _MAX_TEXT else f"{line[:_MAX_TEXT]}..."


def summary(result: RunResult) -> str:
    """What a run has used and why it has ended, in one line."""
    # what a parked run waits for is printed last
    reasons = () if result.ending is RunEnding.PARKED else result.reasons
    return " · ".join([totals(result), *reasons])


def totals(result: RunResult) -> str:
    """What a run has used, in one line."""
    return " · ".join([counted(result.messages, "message"), *spent(result), f"{result.seconds:.1f} s"])


def spent(used: RunResult | Costs) -> Iterator[str]:
    """Yield the tokens that were used, and what they cost, as far as that is known."""
    usage = used.usage
    if tokens := usage.prompt_tokens + usage.completion_tokens:
        told = tokens_in_words(tokens, is_estimated=used.is_estimated)
        yield f"{told} ({usage.prompt_tokens:,} in, {usage.completion_tokens:,} out)"
    if used.cost is not None:
        yield used.cost.to_text()


def tool_lines(result: RunResult) -> Iterator[str]:
    """Yield a line for each tool that the code of a run has called."""
    for tool in result.tools:
        failed = [
            f"{count} {outcome.value.replace('_', ' ')}"
            for outcome, count in tool.outcomes.items()
            if outcome is not CallOutcome.OK
        ]
        calls = f"{counted(sum(tool.outcomes.values()), 'call')}, {tool.seconds:.1f} s"
        yield f"tools.{tool.name}: {', '.join([calls, *failed])}"


def _change_of(file: RunFile) -> str:
    # the copy is new, whatever the workspace had before
    return "copied" if file.is_copy and file.change == "changed" else file.change


def file_lines(files: Sequence[RunFile]) -> Iterator[str]:
    """Yield a line for each file, or for many files one for each kind of change: the change, the path and the size.

    Paths below the working directory are relative to it.
    """
    changes = [_change_of(file) for file in files]
    width = max(map(len, changes), default=0)
    if len(files) <= _MAX_FILES:
        for file, change in zip(files, changes, strict=True):
            yield f"{change:{width}} {_place_of(file)} · {size_of(file.size)}"
        return
    for change in dict.fromkeys(changes):
        those = [file for file, what in zip(files, changes, strict=True) if what == change]
        yield f"{change:{width}} {_many(those)}"


def _many(files: Sequence[RunFile]) -> str:
    """Some files in one line: their number, their common directory, their size, and the names of the first."""
    places = list(map(_place_of, files))
    directory = (
        os.path.commonpath(map(os.path.dirname, places)) if len({*map(os.path.isabs, places)}) == 1 else ""
    )
    named = ", ".join(os.path.relpath(place, directory or ".") for place in places[:_MAX_NAMES])
    more = f" and {len(places) - _MAX_NAMES:,} more" if places[_MAX_NAMES:] else ""
    within = f" in {directory}" if directory else ""
    size = size_of(sum(file.size for file in files))
    return f"{counted(len(files), 'file')}{within} · {size}: {named}{more}"


def _place_of(file: RunFile) -> str:
    return file.path if file.found_at is None else _from_here(file.found_at)


def _from_here(path: str) -> str:
    with suppress(OSError, ValueError):
        return str(Path(path).relative_to(Path.cwd()))
    return path
