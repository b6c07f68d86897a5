"""The commands ``show`` and ``export``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from pathlib import Path
from tempfile import TemporaryDirectory

from codeact_team.cli.conversation import Conversation
from codeact_team.cli.json_lines import JsonLines
from codeact_team.cli.run import GoingOn, tell_what_stopped, whole_file
from codeact_team.cli.screen import Screen
from codeact_team.core.effects import Event
from codeact_team.core.events import BlockEnded, Output
from codeact_team.core.files import made_named
from codeact_team.core.visibility import cut
from codeact_team.errors import JournalError, SettingError
from codeact_team.runs.journal.recorded_run import RecordedRun
from codeact_team.runs.journal.run_directory import RunDirectory, find_run
from codeact_team.runs.kept_runs import KeptRun, RunState
from codeact_team.runs.pages.page import write_page
from codeact_team.runs.result import RunResult

_MAX_TITLE = 100


def show_command(
    screen: Screen, directory: RunDirectory, *, follow: bool, as_json: bool, html: Path | None
) -> int:
    """Print what happened in a run, or write its page to ``html``, and return the exit code."""
    if html is not None and (follow or as_json):
        raise SettingError("--html writes a page of what has happened: leave --follow and --json out")
    run = RecordedRun(directory)
    # says what is wrong with it
    _ = run.about
    if html is not None:
        _write(screen, run, html)
    else:
        resume_hint = GoingOn()
        asyncio.run(_print_run(screen, run, resume_hint, follow=follow, as_json=as_json))
        if not as_json:
            _tell_state(screen, KeptRun.read(directory), resume_hint)
    return 0


async def _print_run(
    screen: Screen, run: RecordedRun, resume_hint: GoingOn, *, follow: bool, as_json: bool
) -> None:
    listener = JsonLines() if as_json else Conversation(screen, answer_last=True)
    async with aclosing(run.follow() if follow else _recorded(run)) as events:
        async for event in events:
            resume_hint(event)
            if (
                isinstance(event, BlockEnded)
                and event.message_id is not None
                and event.output
                and not as_json
            ):
                # it came in pieces, which are not recorded
                listener(
                    Output(
                        agent=event.agent,
                        text=event.output,
                        message_id=event.message_id,
                        parent=event.parent,
                    )
                )
            listener(event)
            if isinstance(event, RunResult) and not as_json:
                tell_what_stopped(screen, event)


async def _recorded(run: RecordedRun) -> AsyncGenerator[Event]:
    for event in run.events():
        yield event


def _tell_state(screen: Screen, run: KeptRun, resume_hint: GoingOn) -> None:
    if run.state is RunState.RUNNING:
        screen.notice("note", "the run goes on; --follow shows what happens as it does")
        return
    if run.state is RunState.CRASHED:
        screen.notice("warning", "the run has no end: its process was killed, or the machine stopped")
    of_program = run.about is not None and run.about.task is None
    if (advice := resume_hint.advice(str(run.directory.path), of_program=of_program)) is not None:
        screen.notice("note", advice)


def _write(screen: Screen, run: RecordedRun, path: Path) -> None:
    about, damages = run.about, list[JournalError]()

    def whole() -> Iterator[Event]:
        try:
            yield from run.events()
        except JournalError as error:
            damages.append(error)

    began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(about.began))
    title = cut(" ".join((run.task or "").split()), _MAX_TITLE) or about.id
    facts = {
        "Run": about.id,
        "Config": about.config,
        "Began": began,
        "Version": about.versions.get("codeact-team", ""),
    }
    state = KeptRun.read(run.directory).state.value
    with whole_file(path, "the page") as file:
        write_page(
            lambda text: file.write(text.encode()),
            whole(),
            run.artifact,
            title=title,
            state=state,
            facts=facts,
        )
    if damages:
        # the page has what is before
        raise damages[0]
    screen.notice("note", f"the page is {path}")


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
        from codeact_team.runs.inspect_logs import write_log
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
