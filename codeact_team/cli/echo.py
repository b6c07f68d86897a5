"""The echo of a terminal."""

from __future__ import annotations

import os
import termios
from contextlib import suppress

_STDIN = 0
_LOCAL_FLAGS = 3


class Echo:
    """Keeps a terminal from showing typed keys, for a while. They are read later all the same."""

    def __init__(self) -> None:
        self._flags: int | None = None
        """The saved attributes of the terminal, while its echo is off."""

    def suppress(self) -> None:
        """Show no typed keys, if standard input is a terminal that does."""
        with suppress(termios.error, OSError):
            if self._flags is not None or not _is_ours():
                return
            settings = termios.tcgetattr(_STDIN)
            if settings[_LOCAL_FLAGS] & termios.ECHO:
                self._flags = settings[_LOCAL_FLAGS]
                settings[_LOCAL_FLAGS] &= ~termios.ECHO
                termios.tcsetattr(_STDIN, termios.TCSANOW, settings)

    def restore(self) -> None:
        """Show typed keys again."""
        if self._flags is None:
            return
        with suppress(termios.error, OSError):
            if not _is_ours():
                # a shell has given its terminal to somebody else, and this process would be stopped
                return
            settings = termios.tcgetattr(_STDIN)
            settings[_LOCAL_FLAGS] |= self._flags & termios.ECHO
            termios.tcsetattr(_STDIN, termios.TCSANOW, settings)
        self._flags = None


def _is_ours() -> bool:
    """Whether standard input is a terminal with this process in its foreground."""
    return os.isatty(_STDIN) and os.tcgetpgrp(_STDIN) == os.getpgrp()
