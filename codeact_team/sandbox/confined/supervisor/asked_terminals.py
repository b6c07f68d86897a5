"""What confined code asks about terminals, where it has no devices of its own: a new one, and the inner end of that.

Landlock keeps all devices of the machine from the code. Here a terminal is made in its place, and only so many. Whoever asked for
it gets its inner end, too; other programs reach it as their own terminal only.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from typing import NamedTuple

from codeact_team.sandbox.confined.supervisor.asked_files import process_of, refused
from codeact_team.sandbox.confined.supervisor.asked_processes import GO_ON
from codeact_team.sandbox.confined.supervisor.isolation import MOST_TERMINALS, NEW_TERMINAL, TERMINALS
from codeact_team.sandbox.confined.supervisor.listening import Asked, Listener, read_text

_FLAGS = os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC
_GET_NUMBER = 0x80045430
"""``TIOCGPTN``, which Python knows since 3.13."""
_NUMBER = struct.Struct("=I")


class _Terminal(NamedTuple):
    """A terminal that a process has asked for.

    Attributes:
        process: The number of the process.
        inner: A descriptor of its inner end, which only names it.
    """

    process: int
    inner: int

    @property
    def is_gone(self) -> bool:
        return not os.fstat(self.inner).st_nlink


class TerminalCalls:
    """Does the calls of :data:`~.calls.OF_TERMINALS`.

    Args:
        listener: Where they are asked.
    """

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._made: dict[bytes, _Terminal] = {}
        """By the path of the inner end."""

    def close(self) -> None:
        """Close what is held open."""
        for terminal in self._made.values():
            os.close(terminal.inner)

    def do(self, name: str, asked: Asked) -> object:
        """Do a call. Returns its result, or :data:`~.asked_processes.GO_ON`. Raises an ``OSError``."""
        path, flags = asked.arguments[:2] if name == "open" else asked.arguments[1:3]
        try:
            named = read_text(asked, path)
        except OSError:
            return GO_ON
        if named == os.fsencode(NEW_TERMINAL):
            return self._give(asked, self._make(asked), flags)
        terminal = self._made.get(named)
        if terminal is None or terminal.process != process_of(asked):
            # Landlock decides on whatever is there when the kernel looks
            return GO_ON
        # a link of the kernel's leads to this one, whatever has its name by now
        return self._give(asked, os.open(f"/proc/self/fd/{terminal.inner}", _FLAGS), flags)

    def _make(self, asked: Asked) -> int:
        for path, terminal in list(self._made.items()):
            if terminal.is_gone:
                os.close(self._made.pop(path).inner)
        if len(self._made) >= MOST_TERMINALS:
            raise refused(errno.ENOSPC)
        process = process_of(asked)
        made = os.open(NEW_TERMINAL, _FLAGS)
        try:
            [number] = _NUMBER.unpack(fcntl.ioctl(made, _GET_NUMBER, bytes(_NUMBER.size)))
            path = f"{TERMINALS}/{number}"
            self._made[os.fsencode(path)] = _Terminal(process, os.open(path, os.O_PATH | os.O_CLOEXEC))
        except BaseException:
            os.close(made)
            raise
        return made

    def _give(self, asked: Asked, fd: int, flags: int) -> int:
        try:
            return self._listener.add_descriptor(asked, fd, is_closed_on_exec=bool(flags & os.O_CLOEXEC))
        finally:
            os.close(fd)
