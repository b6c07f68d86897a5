"""Standard input and output, which code may close, replace and redirect, put back for the next block."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from os import get_blocking, write

from codeact_team.session.runner.interpreter.descriptors import Descriptor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_STDIN, _STDOUT, _STDERR = range(3)


class Streams:
    """Remembers what file descriptors 0 to 2 and ``sys.stdin``, ``sys.stdout`` and ``sys.stderr`` are now."""

    def __init__(self) -> None:
        self._supervisor = os.getppid()
        self._copies = {fd: os.dup(fd) for fd in (_STDIN, _STDOUT, _STDERR)}
        self._remember()
        self._own: dict[str, Any] = {"stdin": sys.stdin, "stdout": sys.stdout, "stderr": sys.stderr}
        for name in ("stdout", "stderr"):
            self._own[name].reconfigure(encoding="utf-8", errors="backslashreplace")

    @property
    def descriptors(self) -> tuple[int, ...]:
        """All that are the runner's."""
        return (*self._copies, *self._copies.values())

    def _remember(self) -> None:
        # one that is made a copy of the other is not taken for it
        owners = {_STDIN: self._supervisor, _STDOUT: os.getpid(), _STDERR: os.getpid()}
        self._descriptors = [
            (Descriptor(fd, owner), Descriptor(self._copies[fd], owner)) for fd, owner in owners.items()
        ]

    def begin(self, output: int) -> None:
        """Write to ``output`` from now on, and read nothing. To be called in a fork of the interpreter."""
        nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(nothing, _STDIN)
        os.dup2(nothing, self._copies[_STDIN], inheritable=False)
        os.close(nothing)
        for fd in (_STDOUT, _STDERR):
            os.dup2(output, fd)
            os.dup2(output, self._copies[fd], inheritable=False)
        self._remember()

    def restore(self) -> None:
        """Put back what is not as it was. Raises an ``OSError`` if the code has closed even the copies."""
        for descriptor, copy in self._descriptors:
            if not descriptor.intact():
                os.dup2(copy.require(), descriptor.fd)
        if not get_blocking(_STDOUT):
            for fd in (_STDOUT, _STDERR):
                os.set_blocking(fd, True)
        for name, stream in self._own.items():
            if getattr(sys, name, None) is not stream or not _is_open(stream):
                self._reopen()
                return

    def flush(self) -> None:
        """Write out what the code's own ``sys.stdout`` and ``sys.stderr`` hold back."""
        for name in ("stdout", "stderr"):
            stream: Any = getattr(sys, name, None)
            if stream is not None and stream is not self._own[name] and not getattr(stream, "closed", False):
                stream.flush()

    def write_error(self, text: str) -> None:
        """Write to standard error, wherever the code has turned ``sys.stderr`` to."""
        self.restore()
        data = memoryview(text.encode("utf-8", "backslashreplace"))
        while data:
            data = data[write(_STDERR, data) :]

    def _reopen(self) -> None:
        if not _is_open(self._own["stdin"]):
            self._own["stdin"] = open(0, encoding="utf-8", closefd=False)
        for fd, name in ((_STDOUT, "stdout"), (_STDERR, "stderr")):
            if not _is_open(self._own[name]):
                self._own[name] = _writer(fd)
        for name, stream in self._own.items():
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)


def _writer(fd: int) -> TextIOWrapper:
    # unbuffered, to be in order with what is written otherwise
    raw = open(fd, "wb", buffering=0, closefd=False)
    return TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)


def _is_open(stream: Any) -> bool:
    try:
        return not stream.closed
    except ValueError:
        # its buffer was detached
        return False
