"""The interpreter as its supervisor sees it: a process, and pipes for commands, for reports and for answers."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator

from codeact_team.sessions.protocol import (
    FROM_INTERPRETER,
    KIB,
    MAX_ANSWER_BYTES,
    MAX_CALLS_AT_ONCE,
    TOKEN_BYTES,
    FrameReader,
    Kind,
    frame,
)
from codeact_team.sessions.runner.supervisor.pipes import PipeWriter, make_pipe, read_some, unread
from codeact_team.sessions.runner.supervisor.process_family import Family

_RUNNER = __name__.rpartition(".")[0].rpartition(".")[0]
_COMMANDS_SIZE = 256 * KIB
"""So that an interpreter finds all its source when it comes to read it."""
_MAX_UNREAD_ANSWERS = 2 * MAX_CALLS_AT_ONCE
"""No honest interpreter leaves more: it has that many calls unanswered in a block, and as many in the one before."""
_MAX_UNREAD_BYTES = 4 * MAX_ANSWER_BYTES
"""Less than so many answers can have, as this is memory that the code shares: a few of the largest."""


class Program:
    """What an interpreter is started from.

    Args:
        payload: The sources, as this process got them.

    Attributes:
        tools: The host's functions, as the host declares them; ``None`` as long as it does not.
    """

    def __init__(self, payload: bytes) -> None:
        if not sys.executable:
            raise OSError("this Python does not know its own path")
        self.payload = payload
        self.tools: bytes | None = None
        self._bootstrap = json.loads(payload)[f"{_RUNNER}.bootstrap"]

    def argv(self, commands: int, reports: int, answers: int) -> list[str]:
        main = f"{_RUNNER}.interpreter.interpreter"
        source = (commands, len(self.payload), main)
        arguments = map(str, (*source, commands, reports, answers))
        return [sys.executable, "-u", "-c", self._bootstrap, *arguments]


class Interpreter:
    """A running interpreter.

    What is given to it waits in one of the pipes, to be flushed by the caller.

    Attributes:
        pid: Its process id, and that of its group and session.
        reports: Where its frames are read.
        commands: Where frames are written to it.
        answers: Where the answers to its calls are written.
        asked: Whether it has been given a block.

    Raises:
        OSError: If it cannot be started.
    """

    def __init__(self, program: Program, family: Family, output: int) -> None:
        theirs, commands = make_pipe(_COMMANDS_SIZE)
        listening, answers = make_pipe()
        self.reports, writer = make_pipe()
        self.commands, self.answers = PipeWriter(commands), PipeWriter(answers)
        os.set_blocking(self.reports, False)
        try:
            self.pid = family.start(
                program.argv(theirs, writer, listening),
                environment=os.environb,
                output=output,
                inherited={fd: fd for fd in (theirs, writer, listening)},
            )
        except OSError:
            self.close()
            raise
        finally:
            for fd in (theirs, writer, listening):
                os.close(fd)
        self.asked = False
        self._frames = FrameReader(FROM_INTERPRETER)
        self._size_of_last = 0
        self.commands.add(program.payload)
        if program.tools is not None:
            self.tell_tools(program.tools)

    def tell_tools(self, tools: bytes) -> None:
        """Give it the declarations of the host's functions."""
        self.commands.add(frame(Kind.TOOLS, bytes(TOKEN_BYTES), tools))

    def run(self, token: bytes, block: bytes) -> None:
        """Give it a block."""
        self.asked = True
        command = frame(Kind.RUN, token, block)
        self._size_of_last = len(command)
        self.commands.add(command)

    def answer(self, token: bytes, answer: bytes) -> bool:
        """Give it the answer to a call; whether it reads its answers."""
        self.answers.add(frame(Kind.ANSWER, token, answer))
        return len(self.answers) <= _MAX_UNREAD_ANSWERS and self.answers.waiting <= _MAX_UNREAD_BYTES

    @property
    def has_begun(self) -> bool:
        """Whether it has read anything of the last block."""
        return unread(self.commands.fd) + self.commands.waiting < self._size_of_last

    def receive(self) -> Iterator[tuple[Kind, bytes]]:
        """The frames that have come. Raises ``EOFError`` if it, and all that it has started, have closed the pipe."""
        try:
            data = read_some(self.reports)
        except BlockingIOError:
            return iter(())
        if not data:
            raise EOFError
        return self._frames.feed(data)

    def close(self) -> None:
        self.commands.close()
        self.answers.close()
        os.close(self.reports)
