"""``codeact-team chat``."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from signal import SIGHUP, SIGINT, SIGTERM, Signals
from typing import TYPE_CHECKING

from codeact_team.cli.conversation import Conversation
from codeact_team.cli.json_lines import JsonLines
from codeact_team.cli.lines import Lines
from codeact_team.cli.reporting import silence
from codeact_team.cli.screen import Screen
from codeact_team.providers import Policy
from codeact_team.runs import EventSink, OpenTeam, opened_team

if TYPE_CHECKING:
    from codeact_team.cli.prompt import Prompt

_COMMAND = re.compile(r"/\w+")
_COMMANDS = {
    "/reset": "forget the conversation and the variables",
    "/help": "show this",
    "/exit": "leave",
}
_GREETING = "Enter sends, Alt+Enter begins a new line, Ctrl-D leaves; /help tells more"
_KEYS = (
    "Alt+Enter, or Esc and then Enter, begins a new line. Ctrl-C stops the work; where nothing is at work, it clears the "
    "line, and leaves if pressed twice. The arrow keys bring back what was entered before."
)
_SAID = {SIGINT: "interrupted", SIGTERM: "terminated", SIGHUP: "the terminal is gone"}


def chat_command(
    screen: Screen,
    config: str,
    overrides: Sequence[str],
    allow: Sequence[str],
    allow_unsafe: bool,
    *,
    as_json: bool,
) -> int:
    """Open a config, run it on one message after the other, print what happens, and return the exit code."""
    policy = Policy.from_environment(allow=allow, allow_unsafe=allow_unsafe)
    with_a_person = not as_json and os.isatty(0) and os.isatty(1)
    chat = _Chat(screen, as_json=as_json, with_a_person=with_a_person)
    return asyncio.run(chat.run(config, overrides, policy))


class _Chat:
    """Messages in, runs of one open team out.

    Args:
        screen: Where to tell what is no output of the team.
        as_json: Whether its output is for programs.
        with_a_person: Whether somebody is at a terminal.
    """

    def __init__(self, screen: Screen, *, as_json: bool, with_a_person: bool) -> None:
        self._screen = screen
        self._sink: EventSink = JsonLines() if as_json else Conversation(screen, echo=not with_a_person)
        self._with_a_person = with_a_person
        self._team: OpenTeam | None = None
        self._prompt: Prompt | None = None
        self._ended_by: Signals | None = None
        self._failed = False

    async def run(self, config: str, overrides: Sequence[str], policy: Policy) -> int:
        """Talk until there is nobody to talk to; return the exit code."""
        self._work = asyncio.ensure_future(self._talk(config, overrides, policy))
        with self._heeding():
            try:
                await self._work
            except asyncio.CancelledError:
                if self._ended_by is None:
                    raise
        if self._ended_by is not None:
            self._screen.notice("error", _SAID[self._ended_by])
            return 128 + self._ended_by
        return 1 if self._failed and not self._with_a_person else 0

    async def _talk(self, config: str, overrides: Sequence[str], policy: Policy) -> None:
        async with opened_team(config, self._sink, overrides=overrides, policy=policy) as team:
            # what cannot start is told before anything is asked
            await team.started()
            self._screen.close()
            self._team = team
            self._prompt = self._ask_a_person() if self._with_a_person else None
            read = self._read_lines() if self._prompt is None else self._prompt.read
            while self._ended_by is None and (text := await read()) is not None:
                if not await self._take(team, text.strip()):
                    return

    async def _take(self, team: OpenTeam, text: str) -> bool:
        """Do what a message asks for; whether the chat goes on."""
        if text == "/exit":
            return False
        if _COMMAND.fullmatch(text):
            await self._command(team, text)
        elif text:
            if self._with_a_person:
                self._screen.wait()
            self._tell_error((await team.run(text)).error)
        return True

    async def _command(self, team: OpenTeam, name: str) -> None:
        if name == "/reset":
            end = await team.reset()
            self._tell_error(end.error)
            if end.came_by_itself:
                self._screen.notice("note", "the conversation and the variables are forgotten", again=True)
            return
        if name != "/help":
            self._screen.notice("warning", f"there is no command {name}", again=True)
        for command, what in _COMMANDS.items():
            self._screen.notice("note", f"{command:7} {what}", again=True)
        if self._with_a_person:
            self._screen.notice("note", _KEYS, again=True)

    def _tell_error(self, error: str | None) -> None:
        if error is not None:
            self._failed = True
            self._screen.notice("error", error, again=True)

    def _ask_a_person(self) -> Prompt:
        # it takes a tenth of a second to import, and others do not need it
        from codeact_team.cli.prompt import Prompt

        self._screen.text(_GREETING, "dim")
        return Prompt(self._screen)

    def _read_lines(self) -> Callable[[], Awaitable[str | None]]:
        if os.isatty(0):
            self._screen.notice("note", "each line is a message; Ctrl-D ends")
        return Lines().read

    @contextmanager
    def _heeding(self) -> Generator[None]:
        """Heed signals; once one has ended the chat, they are ignored for good, so that nothing cuts the end short."""
        loop = asyncio.get_running_loop()
        # without a terminal of its own, the chat may be meant to outlive one
        heeded = (SIGINT, SIGTERM, SIGHUP) if self._with_a_person else (SIGINT, SIGTERM)
        for number in heeded:
            loop.add_signal_handler(number, self._heed, number)
        try:
            yield
        finally:
            for number in heeded:
                loop.remove_signal_handler(number)
                if self._ended_by is not None:
                    signal.signal(number, signal.SIG_IGN)

    def _heed(self, number: Signals) -> None:
        if self._ended_by is not None:
            return
        if number is SIGINT and self._prompt is not None:
            # it ends no more than what is going on; while the terminal is asked, Ctrl-C is a key and no signal
            if self._team is None or not self._team.stop(number):
                self._prompt.interrupt()
            return
        self._ended_by = number
        if number is SIGHUP:
            silence(sys.stdout, sys.stderr)
        if self._team is None or not self._team.stop(number):
            self._work.cancel()
