"""The interpreter's end of the pipes to the supervisor: the only place that reads and writes frames."""

from __future__ import annotations

import json
import os
from collections import deque
from collections.abc import Iterator
from io import BufferedWriter, FileIO
from os import read

from codeact_team.session.protocol import (
    ANSWERS,
    FROM_INTERPRETER,
    KIB,
    TO_INTERPRETER,
    TOKEN_BYTES,
    FrameReader,
    Kind,
    frame,
)
from codeact_team.session.runner.interpreter.descriptors import Descriptor

_PIPE_BYTES = 64 * KIB

encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
decode = json.JSONDecoder().decode


class Channel:
    """Frames over three pipes: two that the supervisor writes, commands and answers, and one that it reads, reports.

    Frames may be sent by several threads. The writer below takes each under its own lock and in C, where no exception
    of Python, not even one that is sent to the thread, can cut it short.

    Attributes:
        descriptors: Of the commands, the reports and the answers.
    """

    def __init__(self, commands: int, reports: int, answers: int) -> None:
        self.descriptors = (commands, reports, answers)
        self._supervisor = os.getppid()
        self._writer = BufferedWriter(FileIO(reports, "w", closefd=False))
        self.begin()

    def begin(self) -> None:
        """Begin with what :attr:`descriptors` refer to now."""
        for fd in self.descriptors:
            os.set_inheritable(fd, False)
        commands, reports, answers = self.descriptors
        # one that is put in another's place has another owner, or cannot be read or written, which is an error, too
        self._commands = Descriptor(commands, self._supervisor)
        self._reports = Descriptor(reports, self._supervisor)
        self.answering = Descriptor(answers, os.getpid())
        self._frames = FrameReader(TO_INTERPRETER)
        self._arrived: deque[tuple[Kind, bytes]] = deque()

    def receive(self) -> tuple[Kind, bytes, bytes] | None:
        """Wait for the next frame: its kind, its token and the rest; ``None`` when there will be no more."""
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
        """Send a frame, of no more than :func:`room` bytes."""
        self._reports.require()
        self._writer.write(frame(kind, token, *payload))
        self._writer.flush()


def room(kind: Kind) -> int:
    """How many bytes a frame of this kind can take, beside the token."""
    return FROM_INTERPRETER[kind] - TOKEN_BYTES
