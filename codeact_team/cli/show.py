"""``codeact-team show``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from pathlib import Path

from codeact_team.cli.answer_file import whole_file
from codeact_team.cli.conversation import Conversation
from codeact_team.cli.going_on import GoingOn
from codeact_team.cli.json_lines import JsonLines
from codeact_team.cli.run import tell_what_stopped
from codeact_team.cli.screen import Screen
from codeact_team.effects import Event
from codeact_team.errors import JournalError, SettingError
from codeact_team.events import BlockEnded, Output
from codeact_team.journal import RecordedRun, RunDirectory
from codeact_team.pages import write_page
from codeact_team.runs import RunResult
from codeact_team.runs.kept_runs import KeptRun, RunState
from codeact_team.visibility import cut

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
        going_on = GoingOn()
        asyncio.run(_print(screen, run, going_on, follow=follow, as_json=as_json))
        if not as_json:
            _tell_state(screen, KeptRun.read(directory), going_on)
    return 0


async def _print(screen: Screen, run: RecordedRun, going_on: GoingOn, *, follow: bool, as_json: bool) -> None:
    listener = JsonLines() if as_json else Conversation(screen, answer_last=True)
    async with aclosing(run.follow() if follow else _recorded(run)) as events:
        async for event in events:
            going_on(event)
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


def _tell_state(screen: Screen, run: KeptRun, going_on: GoingOn) -> None:
    if run.state is RunState.RUNNING:
        screen.notice("note", "the run goes on; --follow shows what happens as it does")
        return
    if run.state is RunState.CRASHED:
        screen.notice("warning", "the run has no end: its process was killed, or the machine stopped")
    of_program = run.about is not None and run.about.task is None
    if (advice := going_on.advice(str(run.directory.path), of_program=of_program)) is not None:
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
