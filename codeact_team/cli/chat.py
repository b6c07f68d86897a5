"""``codeact-team chat``."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from signal import SIGINT, Signals
from typing import TYPE_CHECKING

from codeact_team.batch.alone import PatientCalls
from codeact_team.cli.conversation import AnswerOnly, Conversation, listener_of
from codeact_team.cli.in_words import file_lines, spent
from codeact_team.cli.json_lines import JsonLines
from codeact_team.cli.prompts import LineReader, asked_yes_or_no, asking_the_person, is_person_there
from codeact_team.cli.run import ResumeHint
from codeact_team.cli.screen import Screen
from codeact_team.cli.signals import ENDED_BY, handling_signals
from codeact_team.cli.undoing import VARIABLES_ARE_LOST, agrees_to_undo, what_is_undone
from codeact_team.config.overrides import ForEvery
from codeact_team.core.effects import Listener
from codeact_team.errors import CodeActTeamError, SettingError
from codeact_team.journal.chat_input import RESET, UNDO
from codeact_team.journal.result import RunEnding
from codeact_team.runs.chat import ChatReply, TeamChat, is_for_team
from codeact_team.runs.remedies import advice
from codeact_team.runs.resuming import chat_of
from codeact_team.runs.run import TeamRun
from codeact_team.text.visibility import visible

if TYPE_CHECKING:
    from codeact_team.cli.message_prompt import MessagePrompt

Begin = Callable[[Listener], Awaitable[int | None]]
Reopen = Callable[[TeamChat, Sequence[str]], TeamChat]

_FILES = "/files"
_COST = "/cost"
_SAVE = re.compile(r"/save\s+(?P<to>\S.*)")
_HTML = re.compile(r"/html(?:\s+(?P<to>\S.*))?")
_PAGE = "chat.html"
_PACKAGE = re.compile(r"/package\s+(?P<names>\S.*)")
_COMMANDS = {
    "/run": "run Python of yours where the team's code runs, such as /run print(len(rows))",
    "/data": "give the code copies of files or directories, such as /data sales.xlsx",
    "/package": "add Python packages to those of the code, such as /package openpyxl",
    "/model": "ask another model from now on, such as /model gpt-5.1",
    _FILES: "list the files that the code has made or changed",
    _COST: "show the tokens and the cost of all messages",
    "/save": "copy these files to a directory, such as /save results",
    "/html": f"write the page of the chat so far to {_PAGE}, or to another file, such as /html sales.html",
    UNDO: "undo the last message: its part of the conversation, and its changes of variables and files",
    RESET: "forget the conversation and the variables",
    "/help": "show this",
    "/exit": "leave, as do exit and quit",
}
_LEAVING = ("exit", "quit")
"""Inputs that end the chat, though they lack the mark of a command."""
_GREETING = "Enter sends, Alt+Enter begins a new line, Ctrl-D leaves; /help tells more"
_KEYS = (
    "Alt+Enter, or Esc and then Enter, begins a new line. Ctrl-C stops the work; where nothing is at work, it clears the "
    "line, and leaves if pressed twice. The arrow keys bring back what was entered before."
)


def chat_command(
    screen: Screen,
    runner: TeamChat,
    *,
    as_json: bool,
    quiet: bool = False,
    hint: ResumeHint | None = None,
    seconds: float | None = None,
    begin: Begin | None = None,
    reopen: Reopen | None = None,
    first: Sequence[str] = (),
) -> int:
    """Open a team, run it on one message after the other, print what happens, and return the exit code.

    ``begin`` is awaited before the first message, with the listener; it returns an exit code if there is to be none.
    ``reopen`` resumes the chat in the same process with changes of its config, such as once an input is undone. ``first`` are inputs before those of the person.
    """
    if as_json and quiet:
        raise SettingError("--json prints all events, and --quiet the answers only: leave one of them out")
    runner.files.make()
    with_a_person = is_person_there(as_json=as_json)
    listener = listener_of(screen, as_json=as_json, echo=not with_a_person)
    if quiet:
        listener = AnswerOnly(screen, knows=lambda: chat.runner.recording.repeats)
    runner.dispatcher.listen(listener, essential=True)
    chat = _Chat(screen, runner, listener, seconds, begin, reopen, first, with_a_person=with_a_person)
    runner.dispatcher.listen(hint := hint or ResumeHint())
    with asking_the_person(screen, chat.leave, as_json=as_json):
        code = asyncio.run(chat.run())
    ended_in = chat.runner.ended_in
    if hint.is_parked and not as_json and (next_step := hint.text(runner.document)) is not None:
        screen.notice("note", next_step, again=True)
    elif with_a_person and ended_in is not None:
        screen.notice("note", f"to go on: {hint.resume(str(ended_in.path))}")
    return code


def reopened(
    resume: Callable[..., tuple[TeamRun, str | None]],
    overrides: Sequence[str | ForEvery],
    patient: PatientCalls,
    chat: TeamChat,
    changes: Sequence[str],
) -> TeamChat:
    """A chat that has ended, resumed with the same patience for its models, and with more changes of its config."""
    assert chat.ended_in is not None, "only a chat that is kept can be resumed"
    again = chat_of(resume(chat.ended_in, overrides=[*overrides, *changes]))
    patient.attach(again)
    return again


class _Chat:
    """Messages in, runs of one open team out."""

    def __init__(
        self,
        screen: Screen,
        runner: TeamChat,
        listener: Listener,
        seconds: float | None,
        begin: Begin | None,
        reopen: Reopen | None,
        first: Sequence[str],
        *,
        with_a_person: bool,
    ) -> None:
        self._screen = screen
        self._listener = listener
        self.runner = runner
        self._seconds = seconds
        self._begin = begin
        self._reopen = reopen
        self._first = [*first]
        self._with_a_person = with_a_person
        self._prompt: MessagePrompt | None = None
        self._read: Callable[[], Awaitable[str | None]] | None = None
        self._is_over = self._is_reopened = False
        self._is_new = True
        """Whether the last input was not in the journal."""
        self._news = ""
        """What is different once the chat is resumed in this process."""
        self._changes: list[str] = []
        """The changes of its config since it was begun here."""
        self._is_left_to_resume = False
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

    def leave(self) -> None:
        """End the chat in the middle of a question, which stays open."""
        self._is_over = True
        self.runner.leave()

    async def _talk(self) -> None:
        while await self._is_to_resume():
            assert self._reopen is not None, "else it is not left for that"
            self.runner, self._is_reopened = self._reopen(self.runner, self._changes), True
            self._screen.notice("note", self._news, again=True)

    async def _is_to_resume(self) -> bool:
        """Open the team, and talk until the person leaves, or undoes an input, or adds packages: returns whether that is so."""
        self._is_left_to_resume = False
        async with self.runner.open():
            # a failure to start is reported before anything is asked
            await self.runner.started()
            self._screen.close()
            if self._begin is not None and (exit_code := await self._begin(self._listener)) is not None:
                self._exit_code = exit_code
                return False
            while not self._is_over and (text := await self._next()) is not None:
                if text == UNDO:
                    return True
                await self._handle(text)
        return self._is_left_to_resume

    async def _next(self) -> str | None:
        """The next input that the team has to know of, or ``None`` if the person leaves."""
        self._is_new = has_left = False

        async def ask() -> str:
            nonlocal has_left
            self._is_new = True
            # after an input was undone, all before this was printed already
            self.runner.dispatcher.listen(self._listener, essential=True)
            if self._first:
                text = self._first.pop(0)
                self._print_input(text)
                return text
            read = self._read = self._read or self._reader()
            while (text := await read()) is not None:
                text = text.strip()
                if text == "/exit" or (self._with_a_person and text in _LEAVING):
                    break
                if text and not await self._is_known_here(text):
                    return text
                if self._is_left_to_resume:
                    break
            has_left = True
            raise asyncio.CancelledError

        try:
            text = await self.runner.next_input(ask)
        except asyncio.CancelledError:
            if has_left:
                return None
            raise
        if not self._is_new and not self._is_reopened:
            self._print_input(text)
        return text

    def _print_input(self, text: str) -> None:
        """Print an input that nobody has just typed."""
        if self._with_a_person:
            self._screen.text(f"\n> {text}", "cyan")

    async def _handle(self, text: str) -> None:
        """Do what an input asks for."""
        if self._with_a_person:
            self._screen.wait()
        reply = await self.runner.respond(text, self._seconds)
        self._print_reply(reply)
        result, document = reply.result, self.runner.document
        if result is not None and document is not None and not isinstance(self._listener, JsonLines):
            if result.ending is RunEnding.NOT_ACCEPTED and (remedy := advice(document, result)) is not None:
                self._screen.notice("note", remedy, again=True)
            if result.wrong_setting is not None and result.wrong_setting.name == "model":
                self._screen.notice("note", self._another_model(), again=True)
        if result is not None and result.ending is RunEnding.PARKED:
            self._is_over, self._exit_code = True, result.exit_code

    def _print_reply(self, reply: ChatReply) -> None:
        """Print what the events of the work have not shown."""
        result, output = reply.result, reply.output
        if output is not None and isinstance(self._listener, Conversation):
            self._screen.text(output.output.removesuffix("\n"))
            if output.exit_code:
                self._screen.text(f"✗ exit code {output.exit_code}", "red")
        if reply.error is not None:
            if self._is_new:
                self._failures.add(1 if result is None else result.exit_code)
            self._screen.notice("error", reply.error, again=True)
        if reply.has_new_model and len(self.runner.models_before) > 1:
            self._screen.notice("note", self._another_model(), again=True)
        if reply.is_reset:
            self._screen.notice("note", "the conversation and the variables are forgotten", again=True)

    def _another_model(self) -> str:
        """How to ask another model than the last one."""
        match self.runner.models_before:
            case []:
                return "to ask another model: /model NAME"
            case [model]:
                return f"to ask {visible(model)} again: /model {visible(model)}"
            case models:
                named = " and ".join(map(visible, models))
                return f"to ask {named} again: /undo, until the last /model is undone"

    async def _is_known_here(self, text: str) -> bool:
        """Do what a command asks for that changes nothing in the chat; returns whether it is one."""
        if text == UNDO:
            return not await self._may_undo()
        save = _SAVE.fullmatch(text)
        if text == _FILES or save is not None:
            await self._print_files(None if save is None else save["to"])
            return True
        if (page := _HTML.fullmatch(text)) is not None:
            await self._write_page(page["to"] or _PAGE)
            return True
        if (package := _PACKAGE.fullmatch(text)) is not None:
            await self._add_packages(package["names"].split())
            return True
        if text == _COST:
            self._screen.text(" · ".join(spent(self.runner.spent)) or "nothing is known of tokens or cost")
            return True
        if is_for_team(text):
            return False
        if text != "/help":
            what = "not the whole command" if text in _COMMANDS else "no command"
            self._screen.notice("warning", f"{text} is {what}", again=True)
        for command, what in _COMMANDS.items():
            self._screen.notice("note", f"{command:8} {what}", again=True)
        if self._with_a_person:
            self._screen.notice("note", _KEYS, again=True)
        return True

    async def _may_undo(self) -> bool:
        """Whether there is an input to undo, and the person undoes it in spite of what stays done."""
        undone = await self.runner.last_input() if self._reopen else None
        if undone is None:
            self._screen.notice("warning", "nothing to undo", again=True)
            return False
        self._news = what_is_undone(undone, is_contained=self.runner.is_contained)
        return await agrees_to_undo(self._screen, undone, with_a_person=self._with_a_person)

    async def _add_packages(self, packages: Sequence[str]) -> None:
        """Get packages, and leave the chat to resume it in a sandbox that has them, if the person wants that."""
        named = visible(", ".join(packages))
        if self._reopen is None or not self.runner.is_kept:
            self._screen.notice(
                "error",
                "packages can be added only to a chat that is kept: begin it without --no-record",
                again=True,
            )
            return
        lost = (
            "variables come back, as the code of the chat runs again"
            if self.runner.is_contained
            else VARIABLES_ARE_LOST
        )
        self._screen.notice("note", f"a new sandbox gets {named}: files stay; {lost}", again=True)
        if self._with_a_person and not await asked_yes_or_no("Begin a new sandbox? y yes, n no > "):
            return
        try:
            changes = await self.runner.get_packages(packages)
        except CodeActTeamError as error:
            self._screen.notice("error", str(error), again=True)
            return
        self._changes += changes
        self._news, self._is_left_to_resume = f"the code has {named} now", True

    async def _print_files(self, out: str | None) -> None:
        """List the files that the code has made or changed, or copy them to a directory."""
        try:
            files = await (self.runner.made() if out is None else self.runner.save(out))
        except (OSError, CodeActTeamError) as error:
            self._screen.notice("error", str(error), again=True)
            return
        for line in file_lines(files):
            self._screen.text(line)
        if not files:
            self._screen.notice("note", "the code has made no files", again=True)

    async def _write_page(self, file: str) -> None:
        """Write the page of the chat so far."""
        # who wants no page need not wait for its import
        from codeact_team.cli.export import shown_page

        try:
            run = await self.runner.recorded()
            where = await asyncio.to_thread(shown_page, run, Path(file))
        except CodeActTeamError as error:
            self._screen.notice("error", str(error), again=True)
            return
        self._screen.notice("note", where, again=True)

    def _reader(self) -> Callable[[], Awaitable[str | None]]:
        if not self._with_a_person:
            if os.isatty(0):
                self._screen.notice("note", "each line is a message; Ctrl-D ends")
            return LineReader().read
        # it takes a tenth of a second to import, and others do not need it
        from codeact_team.cli.message_prompt import MessagePrompt

        self._screen.line((_GREETING, "dim"))
        self._prompt = MessagePrompt(self._screen)
        return self._prompt.read

    def _stop(self, number: Signals) -> bool:
        """Stop the work; returns whether that is the end of the chat."""
        stopped = self.runner.stop(number)
        if number is SIGINT and self._prompt is not None:
            # it ends the work only; at a prompt, Ctrl-C is a key and no signal
            if not stopped:
                self._prompt.interrupt()
            return False
        self._is_over = True
        if not stopped:
            self._work.cancel()
        return True
