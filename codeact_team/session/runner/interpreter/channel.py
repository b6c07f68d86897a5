"""The interpreter's ends of what it shares with its supervisor: pipes for frames, and the standard streams.

Code may close, replace or redirect any of them.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections import deque
from io import BufferedWriter, FileIO, TextIOWrapper
from os import get_blocking, read, write

from codeact_team.sandbox.system.framing import FrameReader, frame
from codeact_team.session.protocol import ANSWERS, FROM_INTERPRETER, KIB, TO_INTERPRETER, TOKEN_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from codeact_team.session.protocol import Kind

_PIPE_BYTES = 64 * KIB
_STDIN, _STDOUT, _STDERR = range(3)

encode: Callable[[Any], str] = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
decode: Callable[[str], Any] = json.JSONDecoder().decode


class _Descriptor:
    """Recognizes whether a descriptor still refers to the file that it refers to now."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._identity = _identity(fd)

    def is_intact(self) -> bool:
        try:
            return _identity(self.fd) == self._identity
        except OSError:
            return False

    def require(self) -> int:
        """Return the descriptor. Raises an ``OSError`` if it no longer refers to the same open file."""
        if not self.is_intact():
            raise OSError(errno.EBADF, f"file descriptor {self.fd}, which is not the code's, was closed")
        return self.fd


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


class Channel:
    """Frames over three pipes: the supervisor writes commands and answers, and reads reports.

    Several threads may send frames. The writer takes each frame under its own lock and in C, where no Python exception, not
    even one raised in the thread from outside, can cut it short.

    Attributes:
        descriptors: The pipes of commands, reports and answers.
    """

    def __init__(self, commands: int, reports: int, answers: int) -> None:
        self.descriptors: tuple[int, int, int] = (commands, reports, answers)
        self._writer = BufferedWriter(FileIO(reports, "w", closefd=False))
        self.begin()

    def begin(self) -> None:
        """Use what :attr:`descriptors` refer to now."""
        for fd in self.descriptors:
            os.set_inheritable(fd, False)
        commands, reports, answers = self.descriptors
        self._commands = _Descriptor(commands)
        self._reports = _Descriptor(reports)
        self.answering: _Descriptor = _Descriptor(answers)
        self._frames = FrameReader(TO_INTERPRETER)
        self._arrived: deque[tuple[int, bytes]] = deque()

    def receive(self) -> tuple[int, bytes, bytes] | None:
        """Wait for the next command: its kind, its token and the rest. ``None`` when there will be no more."""
        while not self._arrived:
            data = read(self._commands.require(), _PIPE_BYTES)
            if not data:
                return None
            self._arrived.extend(self._frames.feed(data))
        kind, payload = self._arrived.popleft()
        return kind, payload[:TOKEN_BYTES], payload[TOKEN_BYTES:]

    def answers(self) -> Iterator[tuple[bytes, bytes]]:
        """Wait for answers until there will be no more: the token and the rest of each. For one thread only."""
        frames = FrameReader(ANSWERS)
        while data := read(self.answering.require(), _PIPE_BYTES):
            for _, payload in frames.feed(data):
                yield payload[:TOKEN_BYTES], payload[TOKEN_BYTES:]

    def send(self, kind: Kind, token: bytes, *payload: bytes) -> None:
        """Send a frame whose payload has at most :func:`room` bytes."""
        self._reports.require()
        self._writer.write(frame(kind, token, *payload))
        self._writer.flush()


def room(kind: Kind) -> int:
    """Return the most bytes of a frame of this kind beside the token."""
    return FROM_INTERPRETER[kind] - TOKEN_BYTES


class Streams:
    """The standard streams: restores descriptors 0 to 2 and ``sys.stdin``, ``sys.stdout`` and ``sys.stderr`` after a block."""

    def __init__(self) -> None:
        self._copies = {fd: os.dup(fd) for fd in (_STDIN, _STDOUT, _STDERR)}
        self._remember()
        self._own: dict[str, Any] = {"stdin": sys.stdin, "stdout": sys.stdout, "stderr": sys.stderr}
        for name in ("stdout", "stderr"):
            self._own[name].reconfigure(encoding="utf-8", errors="backslashreplace")

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (*self._copies, *self._copies.values())

    def _remember(self) -> None:
        self._descriptors = [(_Descriptor(fd), _Descriptor(copy)) for fd, copy in self._copies.items()]

    def begin(self, output: int) -> None:
        """In a fork of the interpreter, write to ``output`` from now on, and read nothing."""
        null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        os.dup2(null, _STDIN)
        os.dup2(null, self._copies[_STDIN], inheritable=False)
        os.close(null)
        for fd in (_STDOUT, _STDERR):
            os.dup2(output, fd)
            os.dup2(output, self._copies[fd], inheritable=False)
        self._remember()

    def restore(self) -> None:
        """Restore what the code has changed. Raises an ``OSError`` if it has closed even the copies."""
        for descriptor, copy in self._descriptors:
            if not descriptor.is_intact():
                os.dup2(copy.require(), descriptor.fd)
        if not get_blocking(_STDOUT):
            for fd in (_STDOUT, _STDERR):
                os.set_blocking(fd, True)
        for name, stream in self._own.items():
            if getattr(sys, name, None) is not stream or not _is_open(stream):
                self._reopen()
                return

    def flush(self) -> None:
        """Flush streams that the code has put in the place of ``sys.stdout`` and ``sys.stderr``."""
        for name in ("stdout", "stderr"):
            stream: Any = getattr(sys, name, None)
            if stream is not None and stream is not self._own[name] and not getattr(stream, "closed", False):
                stream.flush()

    def write_error(self, text: str) -> None:
        """Write to standard error, even if the code has redirected it."""
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
    # unbuffered, to keep the order with what is written by other means
    raw = open(fd, "wb", buffering=0, closefd=False)
    return TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", write_through=True)


def _is_open(stream: Any) -> bool:
    try:
        return not stream.closed
    except ValueError:
        # its buffer was detached
        return False
