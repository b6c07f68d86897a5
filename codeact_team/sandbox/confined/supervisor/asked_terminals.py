"""What confined code asks about terminals, where it has no devices of its own: a new one, and the inner end of that.

Landlock keeps all devices of the machine from the code. So terminals are made here, up to a limit. The process that has asked for one
can open its inner end by name, too. Others inherit that end, or have it as their own terminal.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from contextlib import ExitStack
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
        """Whether its outer end is closed. The kernel counts it until its inner end is closed, too."""
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
        if len(self._made) >= MOST_TERMINALS:
            self._forget_free()
        if len(self._made) >= MOST_TERMINALS:
            raise refused(errno.ENOSPC)
        process = process_of(asked)
        made, path = _open_new()
        try:
            self._forget(path)
            self._made[path] = _Terminal(process, os.open(path, os.O_PATH | os.O_CLOEXEC))
        except BaseException:
            os.close(made)
            raise
        return made

    def _forget_free(self) -> None:
        """Forget those whose numbers other terminals have, or the kernel gives to new ones: it gives the lowest that nobody has."""
        for path in [path for path, one in self._made.items() if one.is_gone and os.path.exists(path)]:
            self._forget(path)
        with ExitStack() as tried:
            for _ in range(MOST_TERMINALS):
                if not any(one.is_gone for one in self._made.values()):
                    break
                made, path = _open_new()
                tried.callback(os.close, made)
                self._forget(path)

    def _forget(self, path: bytes) -> None:
        if (terminal := self._made.pop(path, None)) is not None:
            os.close(terminal.inner)

    def _give(self, asked: Asked, fd: int, flags: int) -> int:
        try:
            return self._listener.add_descriptor(asked, fd, is_closed_on_exec=bool(flags & os.O_CLOEXEC))
        finally:
            os.close(fd)


def _open_new() -> tuple[int, bytes]:
    """Make a terminal. Returns its outer end, and the path of its inner end. Raises an ``OSError``."""
    made = os.open(NEW_TERMINAL, _FLAGS)
    try:
        [number] = _NUMBER.unpack(fcntl.ioctl(made, _GET_NUMBER, bytes(_NUMBER.size)))
    except BaseException:
        os.close(made)
        raise
    return made, f"{TERMINALS}/{number}".encode()
