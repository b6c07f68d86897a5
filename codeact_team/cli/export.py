"""The command ``export``, and the page of ``show``: runs as files for other programs, by the endings of their names."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from textwrap import shorten

from codeact_team.cli.run import whole_file
from codeact_team.cli.screen import Screen
from codeact_team.core.effects import Event
from codeact_team.core.shipped import how_to_install, shipped_configs
from codeact_team.errors import JournalError, SettingError
from codeact_team.exports.archive import write_archive
from codeact_team.exports.markdown import markdown_of
from codeact_team.exports.notebook import notebook_of
from codeact_team.exports.pages.page import write_page
from codeact_team.exports.story import Story
from codeact_team.files.opening import made_named
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.run_directory import find_run
from codeact_team.runs.kept_runs import KeptRun

_MAX_TITLE = 100
_OVER = "; it replaces the file that was there"
"""The end of a note about a file that was written."""
_INSTALL = f"logs for Inspect need inspect-ai: {how_to_install('inspect')}"


def export_command(screen: Screen, names: Sequence[str], runs: Path) -> None:
    """Write the runs that are named, each once, to the file that is named last, in the format of its ending."""
    *chosen, last = names
    file = Path(last)
    write = _FORMATS.get(file.suffix.lower())
    if write is None:
        raise SettingError(
            f"{last} is not a file that can be written: after the run, name a file that ends in {', '.join(_FORMATS)}"
        )
    if not chosen:
        raise SettingError(
            f"say which run to write to {last}: put it before the file, as in `export last {last}`"
        )
    found = {directory.path: directory for directory in (find_run(name, runs) for name in chosen)}
    if len(found) > 1 and file.suffix.lower() not in _FOR_SEVERAL:
        raise SettingError(
            f"{last} takes one run; several go into a file that ends in {', '.join(_FOR_SEVERAL)}"
        )
    over = _OVER if os.path.lexists(file) else ""
    recorded = [RecordedRun(directory) for directory in found.values()]
    try:
        with made_named(file.parent):
            pass
    except OSError as error:
        raise SettingError(f"{file} cannot be written: {error.strerror}") from error
    hint = write(screen, recorded, file)
    screen.text(str(file))
    screen.notice("note", f"{hint}{over}")


def _write_notebook(screen: Screen, runs: Sequence[RecordedRun], file: Path) -> str:
    with _told(runs[0]) as story, whole_file(file, "the notebook") as whole:
        whole.write(notebook_of(runs[0], story))
    return f"to open it: jupyter lab {file}"


def _write_markdown(screen: Screen, runs: Sequence[RecordedRun], file: Path) -> str:
    folder = file.with_name(f"{file.stem}_files")
    with _told(runs[0]) as story, whole_file(file, "the text") as whole:
        text, pictures = markdown_of(story, runs[0].artifact, folder.name)
        whole.write(text.encode(errors="replace"))
        if pictures:
            with made_named(folder):
                pass
        for name, picture in pictures.items():
            with whole_file(folder / name, "a picture") as drawn:
                drawn.write(picture)
    return f"its pictures are in {folder}" if pictures else "any program that knows Markdown shows it"


@contextmanager
def _told(run: RecordedRun) -> Generator[Story]:
    """The story of a run; raises at the end why there is no more of it."""
    # raises if nothing can be read
    _ = run.about
    story = Story.of(run)
    yield story
    if story.damage is not None:
        raise story.damage


def _write_page(screen: Screen, runs: Sequence[RecordedRun], file: Path) -> str:
    write_page_of(runs[0], file)
    return "any browser shows it"


def shown_page(run: RecordedRun, path: Path) -> str:
    """Write the page of a run as `write_page_of` does; returns where it is, in words."""
    path = path.expanduser()
    over = _OVER if os.path.lexists(path) else ""
    write_page_of(run, path)
    return f"the page is {path}{over}"


def write_page_of(run: RecordedRun, path: Path) -> None:
    """Write the page of a run, of a damaged one what is before the damage.

    Raises:
        SettingError: If it cannot be written.
        JournalError: If the run cannot be read, or is damaged.
    """
    about, damages = run.about, list[JournalError]()

    def whole() -> Iterator[Event]:
        try:
            yield from run.events()
        except JournalError as error:
            damages.append(error)

    facts = {
        "Run": about.id,
        "Config": _name_of(about.config),
        "Began": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(about.began)),
        "Version": about.versions.get("codeact-team", ""),
    }
    with whole_file(path, "the page") as file:
        write_page(
            lambda text: file.write(text.encode()),
            whole(),
            run.artifact,
            title=shorten(run.task or "", _MAX_TITLE, placeholder=" …") or about.id,
            state=KeptRun.read(run.directory).state.value,
            facts=facts,
        )
    if damages:
        raise damages[0]


def _name_of(config: str) -> str:
    """The name of a config for others, who have other directories."""
    path = Path(config)
    return path.stem if path in shipped_configs().values() else path.name


def _write_archive(screen: Screen, runs: Sequence[RecordedRun], file: Path) -> str:
    with TemporaryFile() as passing:
        write_archive(runs, passing)
        passing.seek(0)
        with whole_file(file, "the archive") as whole:
            shutil.copyfileobj(passing, whole)
    name = runs[0].directory.path.resolve().name
    return f"to look at it: unzip {file} && codeact-team show {name}"


def _write_log(screen: Screen, runs: Sequence[RecordedRun], file: Path) -> str:
    try:
        from codeact_team.exports.inspect_logs import write_log
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "inspect_ai":
            raise
        raise SettingError(_INSTALL) from error
    with TemporaryDirectory() as passing:
        # Inspect's writer follows links
        log = Path(passing, file.name)
        try:
            problems = write_log(runs, log)
        except OSError as error:
            raise SettingError(f"the log cannot be written to {file}: {error.strerror or error}") from error
        with whole_file(file, "the log") as whole, log.open("rb") as written:
            shutil.copyfileobj(written, whole)
    for problem in problems:
        screen.notice("warning", problem)
    return f"to look at it: inspect view --log-dir {file.parent}"


_FORMATS: Mapping[str, Callable[[Screen, Sequence[RecordedRun], Path], str]] = {
    ".ipynb": _write_notebook,
    ".html": _write_page,
    ".md": _write_markdown,
    ".zip": _write_archive,
    ".eval": _write_log,
    ".json": _write_log,
}
"""By the ending of a file, what writes it, and returns what a person does with it."""
_FOR_SEVERAL = (".zip", ".eval", ".json")
