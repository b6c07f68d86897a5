"""Messages typed on a terminal: lines that can be edited, more than one of them if need be, and a history."""

from __future__ import annotations

import os
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.key_binding import KeyBindings, KeyPress, KeyPressEvent
from prompt_toolkit.keys import Keys

from codeact_team.cli.screen import Screen

_MARK = FormattedText([("ansicyan bold", "> ")])
_LEAVING = "Ctrl-C again, or Ctrl-D, leaves"


class MessagePrompt:
    """Asks a person for messages."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        keys = KeyBindings()
        keys.add("enter")(_send)
        keys.add("escape", "enter")(_begin_line)
        self._session: PromptSession[str] = PromptSession(
            _MARK, multiline=True, prompt_continuation="  ", history=_history(screen), key_bindings=keys
        )

    async def read(self) -> str | None:
        """The next message, or ``None`` if the person leaves: by Ctrl-D, or by Ctrl-C twice on an empty line."""
        was_empty = False
        self._screen.text("")
        while True:
            try:
                # Ctrl-C is a key here, and the chat has its own handler of signals
                return await self._session.prompt_async(handle_sigint=False, set_exception_handler=False)
            except EOFError:
                return None
            except KeyboardInterrupt:
                is_empty = not self._session.default_buffer.text
                if is_empty and was_empty:
                    return None
                if is_empty:
                    self._screen.text(_LEAVING, "dim")
                was_empty = is_empty

    def interrupt(self) -> None:
        """Do as if Ctrl-C were pressed; between two prompts, at the next one."""
        app = self._session.app
        if app.is_running:
            app.key_processor.send_sigint()
        else:
            store_typeahead(app.input, [KeyPress(Keys.SIGINT)])


def _send(event: KeyPressEvent) -> None:
    event.current_buffer.validate_and_handle()


def _begin_line(event: KeyPressEvent) -> None:
    event.current_buffer.insert_text("\n")


def _history(screen: Screen) -> History:
    try:
        # as XDG has it: a path that is not absolute does not count
        state = Path(os.environ.get("XDG_STATE_HOME", ""))
        if not state.is_absolute():
            state = Path.home() / ".local" / "state"
        file = state / "codeact-team" / "history"
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
    except (OSError, RuntimeError) as error:
        _warn(screen, error)
        return InMemoryHistory()
    return _KeptHistory(screen, file)


def _warn(screen: Screen, error: Exception) -> None:
    screen.notice("warning", f"what you type cannot be kept for the next chat: {error}")


class _KeptHistory(FileHistory):
    """A history in a file that may become unusable at any time."""

    def __init__(self, screen: Screen, file: Path) -> None:
        super().__init__(file)
        self._screen = screen

    def load_history_strings(self) -> list[str]:
        try:
            return list(super().load_history_strings())
        except OSError as error:
            _warn(self._screen, error)
            return []

    def store_string(self, string: str) -> None:
        try:
            super().store_string(string)
        except OSError as error:
            _warn(self._screen, error)
