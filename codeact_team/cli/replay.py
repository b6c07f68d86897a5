"""``codeact-team replay``."""

from __future__ import annotations

import asyncio
from functools import partial

from codeact_team.cli.chat import chat_command
from codeact_team.cli.conversation import Conversation
from codeact_team.cli.json_lines import JsonLines
from codeact_team.cli.notices import tell_beside
from codeact_team.cli.run import stoppable_run, tell_what_stopped
from codeact_team.cli.screen import Screen
from codeact_team.effects import Event, Listener
from codeact_team.errors import SettingError
from codeact_team.events import Replayed
from codeact_team.runs import ReplayedRun, RunEnding, RunResult

_DIFFERS = 1


def replay_command(screen: Screen, run: ReplayedRun, *, as_json: bool, quiet: bool) -> int:
    """Replay a run, print what happens and what differs, and return the exit code."""
    if as_json and quiet:
        raise SettingError("--json prints all events, and --quiet what was found only: leave one of them out")
    listener = _listener(screen, as_json=as_json, quiet=quiet)
    run.runner.listen(listener, essential=True)
    result = asyncio.run(stoppable_run(run.runner, run.task))
    return _found(screen, run, result, listener)


def replay_until_command(screen: Screen, run: ReplayedRun, *, as_json: bool) -> int:
    """Replay a part of a run, let a person talk to its team from there on, and return the exit code."""

    async def begin(listener: Listener) -> int | None:
        result = await run.runner.run(run.task)
        run.go_live()
        return _found(screen, run, result, listener) or None

    return chat_command(screen, run.runner, as_json=as_json, begin=begin)


def _listener(screen: Screen, *, as_json: bool, quiet: bool) -> Listener:
    if as_json:
        return JsonLines()
    return partial(_tell_beside, screen) if quiet else Conversation(screen)


def _tell_beside(screen: Screen, event: Event) -> None:
    tell_beside(screen, event)


def _found(screen: Screen, run: ReplayedRun, result: RunResult, listener: Listener) -> int:
    """Tell what a replay has found; returns the exit code."""
    tell_what_stopped(screen, result)
    if result.ending in (RunEnding.FAILED, RunEnding.STOPPED):
        return result.exit_code
    found = run.found(result)
    if isinstance(listener, JsonLines):
        listener(found)
    else:
        _print(screen, found)
    return 0 if found.difference is None else _DIFFERS


def _print(screen: Screen, found: Replayed) -> None:
    for each in found.changed:
        times = "" if each.times == 1 else f" {each.times} times"
        screen.notice(
            "note", f"{each.agent} has asked otherwise than then{times} ({each.kind.replace('_', ' ')})"
        )
    screen.text("")
    blocks = f"{found.blocks} call{'' if found.blocks == 1 else 's'} of code"
    if found.difference is None:
        screen.text("── as recorded ", "bold green", end="")
        so_far = "" if found.is_whole else " · as far as it went"
        screen.text(f"· {blocks} · {found.answered} answers from the journal{so_far}", "dim")
        return
    screen.text("── not as recorded ", "bold red", end="")
    screen.text(f"· after {blocks} as recorded", "dim")
    screen.quote(found.difference, "diff")
