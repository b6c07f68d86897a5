"""The interpreter as its supervisor sees it: a process, pipes for commands, reports and answers, and a socket for forks."""

from __future__ import annotations

import json
import marshal
import os
import struct
import sys

# without the module around it, which takes longer to load than all else here
from _socket import AF_UNIX, MSG_DONTWAIT, SCM_RIGHTS, SOCK_STREAM, SOL_SOCKET, socketpair
from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence

from codeact_team.session.protocol import (
    BORN,
    FROM_INTERPRETER,
    KIB,
    MAX_ANSWER_BYTES,
    MAX_CALLS_AT_ONCE,
    TOKEN_BYTES,
    FrameReader,
    Kind,
    frame,
)
from codeact_team.session.runner import user_site
from codeact_team.session.runner.supervisor.pipes import PipeWriter, make_pipe, read_some, unread
from codeact_team.session.runner.supervisor.process_family import Family
from codeact_team.session.runner.supervisor.relay import Output

_RUNNER = __name__.rpartition(".")[0].rpartition(".")[0]
INTERPRETER = f"{_RUNNER}.interpreter.interpreter"
"""The module that an interpreter runs."""
_SO_PASSCRED, _SCM_CREDENTIALS = 16, 2
_COMMANDS_SIZE = 256 * KIB
"""So that an interpreter finds all its source when it comes to read it."""
_MAX_UNREAD_ANSWERS = 2 * MAX_CALLS_AT_ONCE
"""No honest interpreter leaves more: it has that many calls unanswered in a block, and as many in the one before."""
_MAX_UNREAD_BYTES = 4 * MAX_ANSWER_BYTES
"""Less than so many answers can have, as this is memory that the code shares: a few of the largest."""


class Born(BaseException):
    """This process is to be an interpreter from now on, with the arguments that :meth:`Program.argv` would give it."""


class Program:
    """What an interpreter is started from.

    Args:
        sources: The modules of the runner, as this process got them.
        can_be_forked: Whether a fork of this process is as good, as long as it knows nothing of the code's.
    """

    def __init__(self, sources: dict[str, tuple[str, bool, str | bytes]], *, can_be_forked: bool) -> None:
        self.can_be_forked = can_be_forked
        if not sys.executable:
            raise OSError("this Python does not know its own path")
        self._sources = sources

    def payload(self) -> bytes:
        """What it reads at its start."""
        return marshal.dumps((self._sources, {}))

    def argv(self, payload: bytes, arguments: list[str]) -> list[str]:
        """How to start it, with these arguments, of which the first is where it reads the payload."""
        _, _, bootstrap = self._sources[f"{_RUNNER}.bootstrap"]
        assert isinstance(bootstrap, str), "it comes as source, to be run by any Python"
        source = (arguments[0], str(len(payload)), INTERPRETER)
        return [sys.executable, "-u", "-c", bootstrap, *source, *arguments]


class Interpreter:
    """An interpreter, to be started by :meth:`start` or :meth:`fork_from`.

    What is given to it waits in one of the pipes, to be flushed by the caller.

    Args:
        output: What it gets as stdout and stderr.

    Attributes:
        pid: Its process id, and that of its group and session; 0 until it is known.
        reports: Where its frames are read.
        commands: Where frames are written to it.
        answers: Where the answers to its calls are written.
        control: Where a fork says that it lives.
        watching: Can be read when it has ended, if it is no child of this process; else ``None``.
        asked: Whether it has been given a block.
        is_pristine: Whether forks of it may run blocks instead of it, as it has run nothing but setups.
        setups: The setups that have run in it then.

    Raises:
        OSError: If there are not enough descriptors.
    """

    def __init__(self, output: Output) -> None:
        opened: list[int] = []
        try:
            opened += (output.open(), *make_pipe(_COMMANDS_SIZE))
            opened += make_pipe()
            opened += make_pipe()
            self._control, control = socketpair(AF_UNIX, SOCK_STREAM)
        except OSError:
            for fd in opened:
                os.close(fd)
            raise
        self._output, theirs, commands, listening, answers, self.reports, writer = opened
        self._theirs = (theirs, writer, listening, control.detach())
        self.commands, self.answers = PipeWriter(commands), PipeWriter(answers)
        os.set_blocking(self.reports, False)
        self.control = self._control.fileno()
        self.pid = 0
        self.watching: int | None = None
        self.asked = False
        self.is_pristine = False
        self.setups: set[bytes] = set()
        self._tools: bytes | None = None
        self._frames = FrameReader(FROM_INTERPRETER)
        self._size_of_last = 0

    def start(self, program: Program, family: Family, *, is_pristine: bool) -> None:
        """Start it.

        Args:
            program: The program.
            family: Who starts it.
            is_pristine: Whether it is to run no block before it has been asked to fork.

        Raises:
            OSError: If it cannot be started.
        """
        self.is_pristine = is_pristine
        arguments = [*map(str, self._theirs)]
        is_fork, program.can_be_forked = program.can_be_forked, False
        payload = b"" if is_fork else program.payload()
        try:
            self.pid = family.start(
                None if is_fork else program.argv(payload, arguments),
                environment=user_site.hidden(os.environb),
                output=self._output,
                inherited={fd: fd for fd in self._theirs},
            )
        except OSError:
            self.close()
            raise
        if self.pid == 0:
            raise Born(arguments)
        self._give_away()
        self.commands.add(payload)

    def fork_from(self, other: Interpreter) -> None:
        """Let it become a fork of another one, which is told to fork next.

        Raises:
            OSError: If it does not get what it needs for that. It is closed then.
        """
        try:
            self._control.setsockopt(SOL_SOCKET, _SO_PASSCRED, 1)
            other._send(*self._theirs, self._output)
        except OSError:
            self.close()
            raise
        self._give_away()
        self._tools = other._tools

    def _send(self, *fds: int) -> None:
        rights = struct.pack(f"{len(fds)}i", *fds)
        self._control.sendmsg([BORN], [(SOL_SOCKET, SCM_RIGHTS, rights)], MSG_DONTWAIT)

    def hear(self) -> tuple[int, str]:
        """What a fork says: its process id, as the kernel has it, and what keeps it from living, if something does."""
        said, data, _, _ = self._control.recvmsg(4096, 256, MSG_DONTWAIT)
        for level, kind, content in data:
            if (level, kind) == (SOL_SOCKET, _SCM_CREDENTIALS) and said.startswith(BORN):
                return struct.unpack_from("i", content)[0], said[len(BORN) :].decode(errors="replace")
        return 0, "it ended"

    def _give_away(self) -> None:
        theirs, self._theirs = self._theirs, ()
        for fd in theirs:
            os.close(fd)
        if theirs:
            os.close(self._output)

    def tell_tools(self, tools: bytes | None) -> None:
        """Give it the declarations of the host's functions, unless it has them."""
        if tools is not None and tools != self._tools:
            self._tools = tools
            self.commands.add(frame(Kind.TOOLS, bytes(TOKEN_BYTES), tools))

    def run(self, kind: Kind, token: bytes, block: bytes) -> None:
        """Give it a block."""
        self.asked = True
        command = frame(kind, token, block)
        self._size_of_last = len(command)
        self.commands.add(command)

    def fork(self, directories: Sequence[str | None], home: str) -> None:
        """Have it fork itself; see :attr:`Kind.FORK`."""
        self._command(Kind.FORK, {"directories": directories, "home": home})

    def seal(self, instructions: bytes, domain: int | None) -> None:
        """Have it run no blocks any more; see :attr:`Kind.SEAL`. Raises an ``OSError`` if it cannot be told."""
        if domain is not None:
            self._send(domain)
        self._command(
            Kind.SEAL, {"filter": b64encode(instructions).decode(), "has_domain": domain is not None}
        )

    def _command(self, kind: Kind, request: Mapping[str, object]) -> None:
        self.commands.add(frame(kind, bytes(TOKEN_BYTES), json.dumps(request).encode()))

    def move(self, home: str, to: str) -> None:
        """Have it go on in another directory."""
        self.commands.add(frame(Kind.MOVE, bytes(TOKEN_BYTES), json.dumps({"home": home, "to": to}).encode()))

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
        self._give_away()
        if self.watching is not None:
            os.close(self.watching)
        self._control.close()
        self.commands.close()
        self.answers.close()
        os.close(self.reports)
