"""The person at the terminal, asked whether a run that came from elsewhere may go on, and which keys it gets."""

from __future__ import annotations

import asyncio
import os
import termios
from collections.abc import Collection

from codeact_team.cli.screen import Screen
from codeact_team.errors import JournalError
from codeact_team.files.saving import readable
from codeact_team.runs.foreign_runs import Confirm, ForeignRun
from codeact_team.visibility import all_visible

_MOST = 64 << 10
"""Characters of a task or a config that a person can be expected to read."""


def confirming(screen: Screen, *, as_json: bool) -> Confirm | None:
    """Who confirms runs; ``None`` where no person is there, or a program reads the output."""
    if as_json or not (os.isatty(0) and os.isatty(1)):
        return None
    return _Prompt(screen)


class _Prompt:
    def __init__(self, screen: Screen) -> None:
        self._screen = screen

    def __call__(self, run: ForeignRun) -> Collection[str] | None:
        self._show(run)
        if not self._asked("Go on with this run? y yes, n no > "):
            return None
        return [
            name
            for name in run.names
            if self._asked(
                f"Give {all_visible(name)} of this machine to its code and its models? y yes, n no > "
            )
        ]

    def _show(self, run: ForeignRun) -> None:
        screen, task, config = self._screen, run.about.task or "", run.config or ""
        if len(task) > _MOST or len(config) > _MOST:
            raise JournalError(
                f"the run in {readable(str(run.directory.path))} was not recorded by you on this machine, and its task or config is too long "
                "to be confirmed"
            )
        screen.begin_line()
        screen.notice(
            "warning",
            f"the run in {readable(str(run.directory.path))} was not recorded by you on this machine, or was changed since. Whoever has written "
            "it chooses what code runs, what your tools are called with, and what counts as approved",
        )
        screen.text("── its task", "bold yellow")
        screen.quote(all_visible(task), None)
        if run.config is not None:
            screen.text("── its config", "bold yellow")
            screen.quote(all_visible(config), "yaml")
        if run.wanted:
            screen.text("── it asks for", "bold yellow")
            screen.quote(all_visible("\n".join(run.wanted)), None)

    def _asked(self, prompt: str) -> bool:
        try:
            return asyncio.run(_enter(prompt)).strip().lower() in ("y", "yes")
        except (EOFError, KeyboardInterrupt):
            return False


async def _enter(prompt: str) -> str:
    # it takes a tenth of a second to import, and most runs do not need it
    from prompt_toolkit import PromptSession
    from prompt_toolkit.input.typeahead import clear_typeahead
    from prompt_toolkit.validation import Validator

    session: PromptSession[str] = PromptSession(validate_while_typing=False)
    session.validator = Validator.from_callable(
        lambda text: text.strip().lower() in ("y", "yes", "n", "no"),
        error_message="y allows it, n does not",
        move_cursor_to_end=True,
    )
    # what was typed before the question was there was not meant for it
    termios.tcflush(session.input.fileno(), termios.TCIFLUSH)
    clear_typeahead(session.input)
    return await session.prompt_async(prompt)
