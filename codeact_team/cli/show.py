"""The command ``show``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from pathlib import Path

from codeact_team.cli.conversation import listener_of
from codeact_team.cli.export import shown_page
from codeact_team.cli.run import ResumeHint, print_end
from codeact_team.cli.screen import Screen
from codeact_team.config.document import Document
from codeact_team.core.effects import Event, OtherEffectEnded
from codeact_team.core.events import BlockEnded, Output, RunBegan
from codeact_team.errors import CodeActTeamError, SettingError
from codeact_team.journal.recorded_run import RecordedRun
from codeact_team.journal.result import RunResult
from codeact_team.journal.run_directory import RunDirectory
from codeact_team.runs.foreign_runs import config_of, options_of
from codeact_team.runs.kept_runs import KeptRun, ParkedRun, RunState
from codeact_team.text.redaction import Redactor, credentials_of_environment


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
        screen.notice("note", shown_page(run, html))
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
    # as a chat has shown it, each answer is where it came
    listener = listener_of(screen, as_json=as_json, answer_last=not run.about.is_chat)
    is_told = False
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
                case RunBegan():
                    is_told = False
                case _:
                    pass
            listener(event)
            if as_json:
                continue
            if isinstance(event, RunResult):
                if not is_told:
                    print_end(screen, event)
                # a chat ends once more as its last task did
                is_told = True
            elif isinstance(event, OtherEffectEnded) and event.told and event.error is not None:
                screen.notice("error", event.told, again=True)


async def _recorded(run: RecordedRun) -> AsyncGenerator[Event]:
    for event in run.events():
        yield event
