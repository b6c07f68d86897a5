"""The interpreter as its supervisor sees it, and the context in which the supervisor starts and ends processes.

An interpreter is a process, with pipes for commands, reports and answers, and a socket for forks.
"""

from __future__ import annotations

import json
import marshal
import os
import resource
import signal
import sys

# without the module around it, which takes longer to load than everything else here
from _socket import AF_UNIX, MSG_DONTWAIT, SOCK_STREAM, SOL_SOCKET, socketpair
from base64 import b64encode
from contextlib import suppress

from codeact_team.sandbox.system.framing import (
    FrameReader,
    frame,
    receive_with_descriptors,
    send_with_descriptors,
)
from codeact_team.sandbox.system.kernel import (
    CODE_DESCRIPTORS,
    PR_SET_DUMPABLE,
    OomScore,
    close_descriptors,
    descriptors_of_libffi,
    limit,
    prctl,
)
from codeact_team.sandbox.system.process_tree import ProcessTree, shared_memory_of
from codeact_team.session.protocol import (
    BORN,
    FROM_INTERPRETER,
    KIB,
    LAUNCHER,
    MAX_ANSWER_BYTES,
    MAX_CALLS_AT_ONCE,
    TOKEN_BYTES,
    Kind,
)
from codeact_team.session.runner import user_site
from codeact_team.session.runner.supervisor.guard import Guard
from codeact_team.session.runner.supervisor.results import Usage
from codeact_team.session.runner.supervisor.streams import (
    OutputPipe,
    PipeWriter,
    PollLoop,
    make_pipe,
    read_available,
    unread_bytes,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Protocol

    from codeact_team.sandbox.system.process_tree import ProcessInfo

    Sources = dict[str, tuple[str, bool, str | bytes]]

    class Session(Protocol):
        """A session, as the others see it."""

        @property
        def interpreter(self) -> InterpreterProcess | None: ...

        @property
        def shell_sessions(self) -> set[int]: ...


_RUNNER = __name__.rpartition(".")[0].rpartition(".")[0]
INTERPRETER = f"{_RUNNER}.interpreter.interpreter"
"""The module that an interpreter runs."""
_SO_PASSCRED = 16
_COMMANDS_PIPE = 256 * KIB
"""Bytes: enough for an interpreter to find all its source when it begins to read."""
_MAX_UNREAD_ANSWERS = 2 * MAX_CALLS_AT_ONCE
"""No honest interpreter leaves more: so many calls may be unanswered in a block, and as many in the one before."""
_MAX_UNREAD_BYTES = 4 * MAX_ANSWER_BYTES
"""A few of the largest answers. As many as the number allows could have more bytes, but the code shares this memory."""

_PROBES = 8
_LAST_DESCRIPTOR = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
_HANDLERS_OF_PYTHON = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGPIPE: signal.SIG_IGN,
    signal.SIGXFSZ: signal.SIG_IGN,
}


class OutOfControl(Exception):
    """A process cannot be ended. The owner of the sandbox has to clear it."""


class Born(BaseException):
    """Raised in a fork that is to be an interpreter from now on, with the arguments of that."""


class Context:
    """State that the sessions in one sandbox share.

    Attributes:
        sources: The modules of the runner.
        is_plain: Whether a fork of this process can be the next interpreter, as no user code has reached it.
        zygote: A sealed interpreter, which has run the setup and never runs a block; interpreters are forks of it.
        sessions: The main session, with number 0, and its forks.
        keeps_zygote: Whether an interpreter can be sealed, and its forks be distinguished.
        is_touched: Whether user code may have run since everything was ended last.
        keepers: The keepers of the host's processes, and the relay. Blocks and their ends leave them alone.
    """

    def __init__(
        self, loop: PollLoop, sources: Sources, sessions: Mapping[int, Session], *, is_plain: bool
    ) -> None:
        if not sys.executable:
            raise OSError("this Python does not know its own path")
        self.loop = loop
        self.sources = sources
        self.is_plain = is_plain
        self._oom_score = OomScore()
        self.guard: Guard = Guard()
        self.processes: ProcessTree = ProcessTree()
        self.zygote: InterpreterProcess | None = None
        self.sessions = sessions
        # in a domain for user code, forks of a zygote could not read their own entries in /proc
        can_keep = self.guard.can_shield and not self.guard.narrows
        self.keeps_zygote: bool = can_keep and self.processes.can_list
        self.is_touched: bool = False
        self.keepers: set[int] = set()
        self.usage: Usage = Usage(lambda: self.interpreters)

    @property
    def interpreters(self) -> list[int]:
        living = [session.interpreter for session in self.sessions.values()]
        return [one.pid for one in (self.zygote, *living) if one is not None]

    def drop_zygote(self) -> None:
        """End the zygote, if there is one. Raises :class:`OutOfControl`."""
        zygote, self.zygote = self.zygote, None
        if zygote is None:
            return
        self.guard.shield(None)
        zygote.close(self.loop)
        if not self.processes.end(lambda process: process.ancestor == zygote.pid):
            raise OutOfControl

    def is_orphan(self, process: ProcessInfo) -> bool:
        """Whether the interpreter that has started a process is gone, and no shell has started it."""
        if process.ancestor in self.interpreters or process.ancestor in self.keepers:
            return False
        return all(process.session not in session.shell_sessions for session in self.sessions.values())

    def start(
        self,
        argv: list[str] | None,
        *,
        environment: Mapping[bytes, bytes],
        output: int,
        inherited: Mapping[int, int],
        directory: str | None = None,
    ) -> int:
        """Start a program in a session of its own, with empty stdin.

        If that fails in the child, it exits with 126. Returns its process id; 0 in a fork of this process, which has
        these streams and only these descriptors. Raises an ``OSError`` if it cannot be forked.
        """
        if (pid := self.fork()) == 0:
            try:
                os.setsid()
                limit(resource.RLIMIT_NOFILE, CODE_DESCRIPTORS)
                self.guard.enter_code()
                _prepare_child(output, inherited, directory)
                if argv is None:
                    _become_plain_python(inherited)
                    return 0
                os.execve(argv[0], argv, environment)
            except BaseException as error:
                os.write(output, f"{argv[0] if argv else 'fork'}: {error}\n".encode())
            os._exit(126)
        return pid

    def touch(self) -> None:
        """Note that user code may run which can reach unused interpreters: none of them becomes the zygote."""
        self.is_touched = True
        for session in self.sessions.values():
            if session.interpreter is not None:
                session.interpreter.is_sealable = False

    def fork(self) -> int:
        """Fork this process. Returns the process id of the child; 0 in the child. Raises an ``OSError``."""
        with self._oom_score:
            pid = os.fork()
        if pid:
            self.processes.add(pid)
        return pid

    def has_room(self) -> bool:
        """Whether some more processes can be started. A sandbox that counts them may miss the end of some killed here."""
        if not self.processes.has_killed_others:
            return True
        self.processes.has_killed_others = False
        reader, writer = os.pipe()
        children: list[int] = []
        try:
            for _ in range(_PROBES):
                if (pid := os.fork()) == 0:
                    os.close(writer)
                    os.read(reader, 1)
                    os._exit(0)
                children.append(pid)
        except OSError:
            return False
        finally:
            os.close(writer)
            os.close(reader)
            for pid in children:
                os.waitpid(pid, 0)
        return True


def _prepare_child(output: int, inherited: Mapping[int, int], directory: str | None) -> None:
    # ignored signals stay ignored in a new program
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if directory is not None:
        with suppress(OSError):
            os.chdir(directory)
    null = os.open(os.devnull, os.O_RDWR)
    for there, here in ((0, null), (1, output), (2, output), *inherited.items()):
        os.dup2(here, there)
        os.set_inheritable(there, True)


def _become_plain_python(descriptors: Iterable[int]) -> None:
    for number, handler in _HANDLERS_OF_PYTHON.items():
        signal.signal(number, handler)
    signal.set_wakeup_fd(-1)
    prctl(PR_SET_DUMPABLE, 1)
    close_descriptors(3, _LAST_DESCRIPTOR, *descriptors, *descriptors_of_libffi())


class InterpreterProcess:
    """An interpreter. It runs after :meth:`start`, or after :meth:`fork_from` once the other one has forked.

    Commands and answers are queued in its pipes; the caller flushes these. Raises an ``OSError`` if there are not
    enough descriptors.

    Attributes:
        pid: Its process id, and the id of its group and session; 0 until it is known.
        reports: Where its frames are read.
        commands: Where commands are written to it.
        answers: Where the answers to its calls are written.
        control: Where a fork reports that it lives.
        watching: Becomes readable when it ends, if it is no child of this process; otherwise ``None``.
        was_used: Whether it was given a block.
        is_sealable: Whether it has run nothing but setups, and can still be sealed.
        setups: The setups that it has run.
    """

    def __init__(self, output: OutputPipe) -> None:
        opened: list[int] = []
        try:
            opened += (output.open(), *make_pipe(_COMMANDS_PIPE))
            opened += make_pipe()
            opened += make_pipe()
            self._control, control = socketpair(AF_UNIX, SOCK_STREAM)
        except OSError:
            for fd in opened:
                os.close(fd)
            raise
        self.reports: int
        self._output, theirs, commands, listening, answers, self.reports, writer = opened
        self._theirs = (theirs, writer, listening, control.detach())
        self.commands: PipeWriter = PipeWriter(commands)
        self.answers: PipeWriter = PipeWriter(answers)
        os.set_blocking(self.reports, False)
        self.control: int = self._control.fileno()
        self.pid: int = 0
        self.watching: int | None = None
        self.was_used: bool = False
        self.is_sealable: bool = False
        self.setups: set[bytes] = set()
        self._tools: bytes | None = None
        self._frames = FrameReader(FROM_INTERPRETER)
        self._size_of_last = 0

    def start(self, context: Context, *, is_sealable: bool) -> None:
        """Start it as a program, or as a fork of this process.

        Raises an ``OSError`` if it cannot be started; it is closed then; a :class:`Born` in the fork.
        """
        self.is_sealable = is_sealable
        arguments = [*map(str, self._theirs)]
        argv, payload = None, b""
        if not context.is_plain:
            modules = marshal.dumps((b"", {}, context.sources, {}))
            _, _, bootstrap = context.sources[f"{_RUNNER}.bootstrap"]
            assert isinstance(bootstrap, str), "it comes as source, so that any Python can run it"
            source = bootstrap.encode()
            sizes = str(len(source)), str(len(modules))
            argv = [sys.executable, "-u", "-c", LAUNCHER, arguments[0], *sizes, INTERPRETER, *arguments]
            payload = source + modules
        context.is_plain = False
        try:
            self.pid = context.start(
                argv,
                environment=user_site.hidden(os.environb),
                output=self._output,
                inherited={fd: fd for fd in self._theirs},
            )
        except OSError:
            self.close()
            raise
        if self.pid == 0:
            raise Born(arguments)
        self._close_theirs()
        self.commands.add(payload)

    def fork_from(self, other: InterpreterProcess) -> None:
        """Prepare it to be a fork of another interpreter, which forks next.

        Raises an ``OSError`` if the descriptors cannot be sent; it is closed then.
        """
        try:
            self._control.setsockopt(SOL_SOCKET, _SO_PASSCRED, 1)
            other._send_descriptors(*self._theirs, self._output)
        except OSError:
            self.close()
            raise
        self._close_theirs()
        self._tools = other._tools

    def _send_descriptors(self, *fds: int) -> None:
        send_with_descriptors(self._control, BORN, fds, MSG_DONTWAIT)

    def receive_birth(self) -> tuple[int, str]:
        """Read a fork's report: its process id, as the kernel says it, and the reason if it cannot live, else empty."""
        data, descriptors, sender = receive_with_descriptors(self._control, 4096, MSG_DONTWAIT)
        for fd in descriptors:
            os.close(fd)
        if sender and data.startswith(BORN):
            return sender, data[len(BORN) :].decode(errors="replace")
        return 0, "it ended"

    def _close_theirs(self) -> None:
        theirs, self._theirs = self._theirs, ()
        for fd in theirs:
            os.close(fd)
        if theirs:
            os.close(self._output)

    def declare_tools(self, tools: bytes | None) -> None:
        """Send it the declarations of the host's functions, unless it has them."""
        if tools is not None and tools != self._tools:
            self._tools = tools
            self.commands.add(frame(Kind.TOOLS, bytes(TOKEN_BYTES), tools))

    def run(self, kind: int, token: bytes, block: bytes) -> None:
        self.was_used = True
        command = frame(kind, token, block)
        self._size_of_last = len(command)
        self.commands.add(command)

    def command(self, kind: Kind, **request: object) -> None:
        """Send it a command that is no block: see :attr:`Kind.FORK`, :attr:`Kind.SEAL` and :attr:`Kind.MOVE`."""
        if kind is Kind.FORK:
            # it may not be allowed to see that itself
            request["shared_memory"] = shared_memory_of(self.pid)
        self.commands.add(frame(kind, bytes(TOKEN_BYTES), json.dumps(request).encode()))

    def seal(self, instructions: bytes, domain: int | None) -> None:
        """Have it run no blocks any more; see :attr:`Kind.SEAL`. Raises an ``OSError`` if it does not take the domain."""
        if domain is not None:
            self._send_descriptors(domain)
        self.command(Kind.SEAL, filter=b64encode(instructions).decode(), has_domain=domain is not None)

    def answer(self, token: bytes, answer: bytes) -> bool:
        """Send it the answer to a call. Returns whether it reads its answers."""
        self.answers.add(frame(Kind.ANSWER, token, answer))
        return len(self.answers) <= _MAX_UNREAD_ANSWERS and self.answers.waiting <= _MAX_UNREAD_BYTES

    @property
    def has_begun(self) -> bool:
        """Whether it has read anything of the last block."""
        return unread_bytes(self.commands.fd) + self.commands.waiting < self._size_of_last

    def receive(self) -> Iterator[tuple[int, bytes]]:
        """The frames that have come. Raises an ``EOFError`` if it, and all that it has started, have closed the pipe."""
        try:
            data = read_available(self.reports)
        except BlockingIOError:
            return iter(())
        if not data:
            raise EOFError
        return self._frames.feed(data)

    def close(self, loop: PollLoop | None = None) -> None:
        """Close what this process holds for it, after the loop has forgotten it."""
        self._close_theirs()
        descriptors = [self.reports, self.commands.fd, self.answers.fd]
        if self.watching is not None:
            descriptors.append(self.watching)
        for fd in descriptors:
            if loop is not None:
                loop.forget(fd)
            os.close(fd)
        self._control.close()
