"""The commands ``show`` and ``export``."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from codeact_team.cli.conversation import listener_of
from codeact_team.cli.run import ResumeHint, print_end, whole_file
from codeact_team.cli.screen import Screen
from codeact_team.config.document import Document
from codeact_team.core.effects import Event
from codeact_team.core.events import BlockEnded, Output
from codeact_team.core.shipped import how_to_install
from codeact_team.errors import CodeActTeamError, JournalError, SettingError
from codeact_team.exports.pages.page import write_page
from codeact_team.files.opening import made_named
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.result import RunResult
from codeact_team.journal.run_directory import RunDirectory, find_run
from codeact_team.runs.foreign_runs import config_of, options_of
from codeact_team.runs.kept_runs import KeptRun, ParkedRun, RunState
from codeact_team.text.redaction import Redactor, credentials_of_environment
from codeact_team.text.visibility import cut

_MAX_TITLE = 100


def show_command(
    screen: Screen, directory: RunDirectory, *, follow: bool, as_json: bool, html: Path | None
) -> int:
    """Print what happened in a run, or write its page to ``html``, and return the exit code."""
    if html is not None and (follow or as_json):
        raise SettingError("--html writes a page of what has happened: leave --follow and --json out")
    run = RecordedRun(directory)
    # raises if it cannot be read
    _ = run.about
    if html is not None:
        _write_page(screen, run, html)
        return 0
    resume_hint = ResumeHint()
    asyncio.run(_print_run(screen, run, resume_hint, follow=follow, as_json=as_json))
    if as_json:
        return 0
    kept = KeptRun.read(directory)
    if kept.state is RunState.RUNNING:
        screen.notice("note", "the run goes on; --follow shows what happens as it does")
        return 0
    if kept.state is RunState.CRASHED:
        screen.notice("warning", "the run has no end: its process was killed, or the machine stopped")
    resume_hint.needed = options_of(run)
    hint = resume_hint.text(
        _config_of(run),
        str(directory.path),
        program=run.about.starting_again if run.about.is_of_program else None,
        still_open=ParkedRun(directory).numbers if resume_hint.is_parked else None,
    )
    if hint is not None:
        screen.notice("note", hint)
    return 0


def _config_of(run: RecordedRun) -> Document | None:
    about = run.about
    redactor = Redactor(credentials_of_environment(os.environ), about.nonce)
    # a run can be shown whose config cannot be used
    with suppress(CodeActTeamError):
        return config_of(run, redactor, None)
    return None


async def _print_run(
    screen: Screen, run: RecordedRun, resume_hint: ResumeHint, *, follow: bool, as_json: bool
) -> None:
    listener = listener_of(screen, as_json=as_json, answer_last=True)
    async with aclosing(run.follow() if follow else _recorded(run)) as events:
        async for event in events:
            resume_hint(event)
            match event:
                case BlockEnded(message_id=str(), output=str() as output) if output and not as_json:
                    # it came in pieces, which are not recorded
                    piece = Output(
                        agent=event.agent, text=output, message_id=event.message_id, parent=event.parent
                    )
                    listener(piece)
                case _:
                    pass
            listener(event)
            if isinstance(event, RunResult) and not as_json:
                print_end(screen, event)


async def _recorded(run: RecordedRun) -> AsyncGenerator[Event]:
    for event in run.events():
        yield event


def _write_page(screen: Screen, run: RecordedRun, path: Path) -> None:
    about, damages = run.about, list[JournalError]()

    def whole() -> Iterator[Event]:
        try:
            yield from run.events()
        except JournalError as error:
            damages.append(error)

    began = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(about.began))
    facts = {
        "Run": about.id,
        "Config": about.config,
        "Began": began,
        "Version": about.versions.get("codeact-team", ""),
    }
    over = _OVER if os.path.lexists(path) else ""
    with whole_file(path, "the page") as file:
        write_page(
            lambda text: file.write(text.encode()),
            whole(),
            run.artifact,
            title=cut(" ".join((run.task or "").split()), _MAX_TITLE) or about.id,
            state=KeptRun.read(run.directory).state.value,
            facts=facts,
        )
    if damages:
        # the page has what is before
        raise damages[0]
    screen.notice("note", f"the page is {path}{over}")


_OVER = "; it replaces the file that was there"
_LOGS = Path("logs")
"""Where Inspect's viewer looks by default."""
_ENDINGS = (".eval", ".json")
_INSTALL = f"logs for Inspect need inspect-ai: {how_to_install('inspect')}"


def export_command(screen: Screen, names: Sequence[str], runs: Path, output: Path | None) -> None:
    """Write a log of the named runs for Inspect, each once, to ``output`` or a file named after the first of them."""
    if output is not None and output.suffix not in _ENDINGS:
        raise SettingError(f"a log for Inspect ends in {' or '.join(_ENDINGS)}, and {output} does not")
    found = {directory.path: directory for directory in (find_run(name, runs) for name in names)}
    chosen = [RecordedRun(directory) for directory in found.values()]
    try:
        from codeact_team.exports.inspect_logs import write_log
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "inspect_ai":
            raise
        raise SettingError(_INSTALL) from error
    # by the name of the directory, which the person knows: the id in it comes from its writer
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
        over = _OVER if os.path.lexists(file) else ""
        with whole_file(file, "the log") as whole, log.open("rb") as written:
            shutil.copyfileobj(written, whole)
    for problem in problems:
        screen.notice("warning", problem)
    screen.text(str(file))
    screen.notice("note", f"to look at it: inspect view --log-dir {file.parent}{over}")
