"""A pseudo-terminal with a command in it: types as a person does, and reads what a person would."""

from __future__ import annotations

import os
import pty
import re
import select
import termios
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from support.command_line import COMMAND, environment
from support.fork_server import Forked, start

CTRL_C, CTRL_D, ENTER, ESCAPE, UP = "\x03", "\x04", "\r", "\x1b", "\x1b[A"
PASTE = "\x1b[200~{}\x1b[201~"

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|.)")
_SIGN_OF_LIFE = re.compile(
    r"(?:[⠀-⣿] [^⠀-⣿\n]*? \d+:\d\d:\d\d(?: of \d+:\d\d:\d\d)?(?:: too many requests for the model's server at [^ \n]*)?)+\n?"
)
_PATIENCE = 90.0
"""Seconds: a busy machine needs some thirty for a prompt, and who waits for what never comes has no hurry."""


class Terminal:
    """What the command shows, and its keyboard."""

    def __init__(self, process: Forked, descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor
        self._raw = b""
        self._read = 0

    @property
    def text(self) -> str:
        """Everything that was shown until now, without escape sequences and what disappears again when work is done."""
        return _SIGN_OF_LIFE.sub("", _ESCAPES.sub("", self.raw).replace("\r", ""))

    @property
    def raw(self) -> str:
        """The same with both."""
        return self._raw.decode(errors="replace")

    def type(self, *keys: str) -> None:
        os.write(self._descriptor, "".join(keys).encode())

    def wait_for(self, text: str) -> None:
        """Read until ``text`` has come after what was waited for before."""
        assert self.shows(text, seconds=_PATIENCE), f"{text!r} never came, but:\n{self.text}"

    def wait_for_raw(self, text: str) -> None:
        """Read until ``text`` has come, which may disappear again."""
        deadline = time.monotonic() + _PATIENCE
        while text not in self.raw:
            assert self._receive(deadline), f"{text!r} never came, but:\n{self.raw}"

    @property
    def echoes(self) -> bool:
        """Whether it shows what is typed."""
        return bool(termios.tcgetattr(self._descriptor)[3] & termios.ECHO)

    def shows(self, text: str, *, seconds: float) -> bool:
        """Whether ``text`` comes, after what was waited for before."""
        deadline = time.monotonic() + seconds
        while (place := self.text.find(text, self._read)) < 0:
            if not self._receive(deadline):
                return False
        self._read = place + len(text)
        return True

    def end(self) -> int:
        """Read to the end, and return the exit code."""
        deadline = time.monotonic() + _PATIENCE
        while self._receive(deadline):
            pass
        assert time.monotonic() < deadline, f"it did not end:\n{self.text}"
        return self.process.wait(timeout=_PATIENCE)

    def hang_up(self) -> None:
        os.close(self._descriptor)

    def _receive(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._descriptor], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return False
        data = b""
        # an error is Linux's way to say that the other side is closed
        with suppress(OSError):
            data = os.read(self._descriptor, 65536)
        self._raw += data
        return bool(data)


@contextmanager
def on_a_terminal(
    *arguments: str, cwd: Path, command: Sequence[str] = COMMAND, typed: Sequence[str] = (), **variables: str
) -> Generator[Terminal]:
    """A command on a terminal on which these keys were ``typed`` before it began."""
    # a pseudo-terminal does not say where its cursor is
    usual = {"TERM": "xterm-256color", "PROMPT_TOOLKIT_NO_CPR": "1", "COLUMNS": "100", "LINES": "40"}
    variables = {"XDG_STATE_HOME": str(cwd / "state"), **usual, **variables}

    def begin(terminal: int) -> Forked:
        return start(
            [*command[1:], *arguments],
            cwd=cwd,
            environment=environment(**variables),
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            # so that Ctrl-C is a signal where it is no key
            terminal=True,
        )

    with terminal_of(begin, typed) as terminal:
        yield terminal


@contextmanager
def terminal_of(begin: Callable[[int], Forked], typed: Sequence[str] = ()) -> Generator[Terminal]:
    """The terminal of the program that ``begin`` starts on the descriptor which it is given."""
    ours, theirs = pty.openpty()
    os.write(ours, "".join(typed).encode())
    process = begin(theirs)
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        with suppress(OSError):
            os.close(ours)
        process.kill()
        process.wait(_PATIENCE)
