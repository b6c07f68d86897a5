"""``codeact-team export``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from codeact_team.cli.answer_file import whole_file
from codeact_team.cli.screen import Screen
from codeact_team.errors import SettingError
from codeact_team.journal import RecordedRun, find_run
from codeact_team.system.named_paths import made_named

_LOGS = Path("logs")
"""Where Inspect's viewer looks if it is told nothing."""
_ENDINGS = (".eval", ".json")
_PIECE = 1 << 20
_INSTALL = "logs for Inspect need inspect-ai: pip install 'codeact-team[inspect]'"


def export_command(screen: Screen, names: Sequence[str], runs: Path, output: Path | None) -> None:
    """Write a log of runs for Inspect, and tell where it is.

    Args:
        screen: Where that is told.
        names: The runs; one that is named twice is in it once.
        runs: The directory that keeps them.
        output: The file; by default one that is named after the first of them.

    Raises:
        CodeActTeamError: If a run cannot be read, the file cannot be written, or a package is missing.
    """
    if output is not None and output.suffix not in _ENDINGS:
        raise SettingError(f"a log for Inspect ends in {' or '.join(_ENDINGS)}, and {output} does not")
    found = {directory.path: directory for directory in (find_run(name, runs) for name in names)}
    chosen = [RecordedRun(directory) for directory in found.values()]
    try:
        from codeact_team.inspect_logs.logs import write_log
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "inspect_ai":
            raise
        raise SettingError(_INSTALL) from error
    # by the name of the directory, which the person knows: the id in it is whoever's who wrote that
    file = output or _LOGS / f"{chosen[0].directory.path.resolve().name}.eval"
    with TemporaryDirectory() as passing:
        # Inspect's writer follows links
        log = Path(passing, file.name)
        try:
            with made_named(file.parent):
                pass
            problems = write_log(chosen, log)
        except OSError as error:
            raise SettingError(f"the log cannot be written to {file}: {error.strerror or error}") from error
        with whole_file(file, "the log") as whole, log.open("rb") as written:
            while piece := written.read(_PIECE):
                whole.write(piece)
    for problem in problems:
        screen.notice("warning", problem)
    screen.text(str(file))
    screen.notice("note", f"to look at it: inspect view --log-dir {file.parent}")
