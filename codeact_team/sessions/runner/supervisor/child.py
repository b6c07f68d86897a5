"""The interpreter as its supervisor sees it: a process, a pipe for commands and one for reports."""

from __future__ import annotations

import json
import os
import sys
from collections import deque
from collections.abc import Iterator

from codeact_team.sessions.protocol import FROM_INTERPRETER, KIB, FrameReader, Kind, frame
from codeact_team.sessions.runner.supervisor.pipes import make_pipe, read_some, unread
from codeact_team.sessions.runner.supervisor.processes import Family

_RUNNER = __name__.rpartition(".")[0].rpartition(".")[0]
_COMMANDS_SIZE = 128 * KIB
"""So that an interpreter finds all its source when it comes to read it."""


class Program:
    """What an interpreter is started from.

    Args:
        payload: The sources, as this process got them.
    """

    def __init__(self, payload: bytes) -> None:
        bootstrap = json.loads(payload)[f"{_RUNNER}.bootstrap"]
        if not sys.executable:
            raise OSError("this Python does not know its own path")
        self.payload = payload
        self._argv = [sys.executable, "-u", "-c", bootstrap]
        self._arguments = [str(len(payload)), f"{_RUNNER}.interpreter.interpreter"]

    def argv(self, commands: int, reports: int) -> list[str]:
        return [*self._argv, str(commands), *self._arguments, str(commands), str(reports)]


class Interpreter:
    """A running interpreter.

    Args:
        program: What to start.
        family: Starts it.
        output: What it writes to.

    Attributes:
        pid: Its process id, and that of its group and session.
        reports: Where its frames are read.
        commands: Where frames are written to it, as it reads them.
        asked: Whether it has been given a block.

    Raises:
        OSError: If it cannot be started.
    """

    def __init__(self, program: Program, family: Family, output: int) -> None:
        theirs, self.commands = make_pipe(_COMMANDS_SIZE)
        self.reports, writer = make_pipe()
        try:
            self.pid = family.start(
                program.argv(theirs, writer),
                environment=os.environb,
                output=output,
                inherited={theirs: theirs, writer: writer},
            )
        except OSError:
            self.close()
            raise
        finally:
            os.close(theirs)
            os.close(writer)
        self.asked = False
        self._frames = FrameReader(FROM_INTERPRETER)
        self._queue = deque([memoryview(program.payload)])
        self._size_of_last = 0
        os.set_blocking(self.commands, False)
        os.set_blocking(self.reports, False)

    def run(self, token: bytes, block: bytes) -> bool:
        """Give it a block; see :meth:`flush`."""
        self.asked = True
        command = frame(Kind.RUN, token, block)
        self._size_of_last = len(command)
        self._queue.append(memoryview(command))
        return self.flush()

    def flush(self) -> bool:
        """Write what it has room for; whether all is written. One that is gone wants nothing more."""
        try:
            while self._queue:
                piece = self._queue[0]
                written = os.write(self.commands, piece)
                if written == len(piece):
                    self._queue.popleft()
                else:
                    self._queue[0] = piece[written:]
        except BlockingIOError:
            return False
        except BrokenPipeError:
            pass
        return True

    @property
    def has_begun(self) -> bool:
        """Whether it has read anything of the last block."""
        return unread(self.commands) + sum(map(len, self._queue)) < self._size_of_last

    def receive(self) -> Iterator[tuple[Kind, bytes]]:
        """The frames that have come; none if nothing has.

        Raises:
            ProtocolError: If what it sends is no frame of an interpreter's.
            EOFError: If it, and whatever it has started, have closed the pipe.
        """
        try:
            data = read_some(self.reports)
        except BlockingIOError:
            return
        if not data:
            raise EOFError
        yield from self._frames.feed(data)

    def close(self) -> None:
        os.close(self.commands)
        os.close(self.reports)
