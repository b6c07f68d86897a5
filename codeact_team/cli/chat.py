"""``codeact-team chat``."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from signal import SIGINT, Signals
from typing import TYPE_CHECKING

from codeact_team.cli.conversation import Conversation, listener_of
from codeact_team.cli.prompts import LineReader, asking_the_person, is_person_there
from codeact_team.cli.screen import Screen
from codeact_team.cli.signals import ENDED_BY, handling_signals
from codeact_team.core.effects import Listener
from codeact_team.runs.run import TeamRun

if TYPE_CHECKING:
    from codeact_team.cli.message_prompt import MessagePrompt

Begin = Callable[[Listener], Awaitable[int | None]]

_COMMAND = re.compile(r"/\w+")
_RUN = re.compile(r"/run\s+(?P<code>.+)", re.DOTALL)
_COMMANDS = {
    "/run": "run the Python that follows where the team's code runs, such as /run print(len(rows))",
    "/reset": "forget the conversation and the variables",
    "/help": "show this",
    "/exit": "leave, as do exit and quit",
}
_LEAVING = ("exit", "quit")
"""What people type to leave, without the mark of a command."""
_GREETING = "Enter sends, Alt+Enter begins a new line, Ctrl-D leaves; /help tells more"
_KEYS = (
    "Alt+Enter, or Esc and then Enter, begins a new line. Ctrl-C stops the work; where nothing is at work, it clears the "
    "line, and leaves if pressed twice. The arrow keys bring back what was entered before."
)


def chat_command(screen: Screen, runner: TeamRun, *, as_json: bool, begin: Begin | None = None) -> int:
    """Open a team, run it on one message after the other, print what happens, and return the exit code.

    ``begin`` is awaited before the first message, with the listener; it returns an exit code if there is to be none.
    """
    with_a_person = is_person_there(as_json=as_json)
    listener = listener_of(screen, as_json=as_json, echo=not with_a_person)
    runner.dispatcher.listen(listener, essential=True)
    chat = _Chat(screen, runner, listener, begin, with_a_person=with_a_person)
    with asking_the_person(screen, as_json=as_json):
        return asyncio.run(chat.run())


class _Chat:
    """Messages in, runs of one open team out."""

    def __init__(
        self,
        screen: Screen,
        runner: TeamRun,
        listener: Listener,
        begin: Begin | None,
        *,
        with_a_person: bool,
    ) -> None:
        self._screen = screen
        self._listener = listener
        self._runner = runner
        self._begin = begin
        self._with_a_person = with_a_person
        self._prompt: MessagePrompt | None = None
        self._is_over = False
        self._exit_code: int | None = None
        self._failures: set[int] = set()
        """Exit codes of the messages that could not be worked on."""

    async def run(self) -> int:
        self._work = asyncio.ensure_future(self._talk())
        with handling_signals(self._stop) as ended_by:
            try:
                await self._work
            except asyncio.CancelledError:
                if not ended_by:
                    raise
        if ended_by:
            self._screen.notice("error", ENDED_BY[ended_by[0]])
            return 128 + ended_by[0]
        if self._exit_code is not None:
            return self._exit_code
        if self._with_a_person or not self._failures:
            return 0
        return os.EX_TEMPFAIL if self._failures == {os.EX_TEMPFAIL} else 1

    async def _talk(self) -> None:
        async with self._runner.open():
            # a failure to start is reported before anything is asked
            await self._runner.started()
            self._screen.close()
            if self._begin is not None and (exit_code := await self._begin(self._listener)) is not None:
                self._exit_code = exit_code
                return
            read = self._reader()
            while not self._is_over and (text := await read()) is not None:
                if not await self._take(text.strip()):
                    return

    async def _take(self, text: str) -> bool:
        """Do what a message asks for; returns whether the chat goes on."""
        if text == "/exit" or (self._with_a_person and text in _LEAVING):
            return False
        if (run := _RUN.fullmatch(text)) is not None:
            await self._run_code(run["code"])
        elif _COMMAND.fullmatch(text):
            await self._command(text)
        elif text:
            if self._with_a_person:
                self._screen.wait()
            result = await self._runner.run(text)
            self._note_error(result.error, result.exit_code)
        return True

    async def _run_code(self, code: str) -> None:
        result, end = await self._runner.run_code(code)
        if result is not None and isinstance(self._listener, Conversation):
            self._screen.text(result.output.removesuffix("\n"))
            if result.exit_code:
                self._screen.text(f"✗ exit code {result.exit_code}", "red")
        self._note_error(end.error, 1)

    async def _command(self, name: str) -> None:
        if name == "/reset":
            end = await self._runner.reset()
            self._note_error(end.error, 1)
            if end.came_by_itself:
                self._screen.notice("note", "the conversation and the variables are forgotten", again=True)
            return
        if name != "/help":
            self._screen.notice("warning", f"there is no command {name}", again=True)
        for command, what in _COMMANDS.items():
            self._screen.notice("note", f"{command:7} {what}", again=True)
        if self._with_a_person:
            self._screen.notice("note", _KEYS, again=True)

    def _note_error(self, error: str | None, exit_code: int) -> None:
        if error is not None:
            self._failures.add(exit_code)
            self._screen.notice("error", error, again=True)

    def _reader(self) -> Callable[[], Awaitable[str | None]]:
        if not self._with_a_person:
            if os.isatty(0):
                self._screen.notice("note", "each line is a message; Ctrl-D ends")
            return LineReader().read
        # it takes a tenth of a second to import, and others do not need it
        from codeact_team.cli.message_prompt import MessagePrompt

        self._screen.text(_GREETING, "dim")
        self._prompt = MessagePrompt(self._screen)
        return self._prompt.read

    def _stop(self, number: Signals) -> bool:
        """Stop the work; returns whether that is the end of the chat."""
        stopped = self._runner.stop(number)
        if number is SIGINT and self._prompt is not None:
            # it ends the work only; at a prompt, Ctrl-C is a key and no signal
            if not stopped:
                self._prompt.interrupt()
            return False
        self._is_over = True
        if not stopped:
            self._work.cancel()
        return True
