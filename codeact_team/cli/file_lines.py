"""The files of a run as lines for a person."""

from __future__ import annotations

from collections.abc import Iterator

from codeact_team.events import ArtifactKept
from codeact_team.runs import RunFile, RunResult

_MAX_LINES = 20
_UNITS = (("kB", 10**3), ("MB", 10**6), ("GB", 10**9))


def file_lines(result: RunResult) -> Iterator[str]:
    """What a run has made or changed."""
    width = max((len(file.change) for file in result.files), default=0)
    for file in result.files[:_MAX_LINES]:
        yield f"{file.change:{width}} {_where(file)} · {size_of(file.size)}"
    if (more := len(result.files) - _MAX_LINES) > 0:
        yield f"and {more:,} more"
    yield from result.file_notes


def artifact_line(kept: ArtifactKept) -> str:
    """Where a picture or a table is that was just shown."""
    return f"{kept.artifact.mime_type}: {kept.path or kept.file} · {size_of(kept.artifact.size)}"


def size_of(size: int) -> str:
    """A number of bytes for a person."""
    if size < 1000:
        return f"{size} byte{'' if size == 1 else 's'}"
    unit, power = next(((unit, power) for unit, power in _UNITS if size < 1000 * power), _UNITS[-1])
    return f"{size / power:,.1f} {unit}"


def _where(file: RunFile) -> str:
    return file.path if file.found_at is None else file.found_at
