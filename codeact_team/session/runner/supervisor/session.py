"""One session as its supervisor sees it: an interpreter, its shells and its files. There is a main session, and its forks.

Everything here reacts to something that can be read: a frame from the host, a report of the interpreter, output, or the end
of a process. Nothing waits for the code.
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from functools import partial

from codeact_team.files import trees
from codeact_team.sandbox.system.framing import ProtocolError, frame
from codeact_team.session.protocol import KIB, RUN_HEAD, TOKEN_BYTES, Kind
from codeact_team.session.runner.supervisor import workspace_files
from codeact_team.session.runner.supervisor.interpreter_process import InterpreterProcess, OutOfControl
from codeact_team.session.runner.supervisor.interpreter_source import InterpreterSource
from codeact_team.session.runner.supervisor.results import KILLED, SessionResults, exit_code
from codeact_team.session.runner.supervisor.shells import SHELLS, RunningBlock, Shells
from codeact_team.session.runner.supervisor.streams import OutputPipe, is_readable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from codeact_team.sandbox.system.process_tree import Choice, ProcessInfo
    from codeact_team.session.runner.supervisor.interpreter_process import Context
    from codeact_team.session.runner.supervisor.streams import HostChannel

_NOT_STARTED, _NOT_FOUND = 126, 127
_INTERRUPTED = 130
_LITTLE = 4 * KIB
"""Bytes: so little output may come from a loop of prints, which will write more."""
_FORGED = "it sent something that is not a report of this block"
_DEAF = "it did not read the answers to its calls"
_FINISHED = "it was ended in order, as its work was done"
_SUCCESS = b"\0"
"""The first byte of the report of a block that has not failed."""


def remove_home(directory: str) -> None:
    """Remove the directory of a fork that has ended, as far as possible."""
    # other forks may write to it, by its absolute path
    with suppress(OSError):
        trees.remove(directory)


class SupervisedSession:
    """A session.

    Attributes:
        results: Reports how its blocks end.
        source: The source of its interpreter.
        shells: Its shells.
        output: What the interpreter and the shells write to.
        tools: The declarations of the host's functions; ``None`` until the host sends some.
    """

    def __init__(self, context: Context, number: int, host: HostChannel, home: str) -> None:
        self._context = context
        self.number = number
        self.host = host
        self.home = home
        self.results: SessionResults = SessionResults(context.usage)
        self.output: OutputPipe = OutputPipe()
        self.shells: Shells = Shells(context, self.output, home)
        self.source: InterpreterSource = InterpreterSource(context, home, self.output, self._listen)
        self.tools: bytes | None = None
        # the files of the main session are in the current directory, which may have been renamed
        self._files = os.fsencode(home) if number else b""
        self._left: str | None = None
        """A directory to be removed once the interpreter has left it."""
        self._block: RunningBlock | None = None
        self._setup: bytes | None = None
        """The code of the block, if it is a setup."""

    @property
    def interpreter(self) -> InterpreterProcess | None:
        return self.source.interpreter

    @property
    def shell_sessions(self) -> set[int]:
        """The kernel's sessions in which processes of its shells may still run."""
        return self.shells.sessions

    def begin(self) -> None:
        self._context.loop.on_readable(self.output.fd, self._on_output, can_wait=True)
        if self.interpreter:
            self._listen(self.interpreter)

    def fork_from(self, other: SupervisedSession) -> None:
        """Become a fork of another session, whose interpreter forks next. Raises an ``OSError``."""
        assert other.interpreter is not None, "it has one"
        child = InterpreterProcess(self.output)
        child.fork_from(other.interpreter)
        self.source.interpreter = child
        self.tools = other.tools
        self.shells.continue_from(other.shells)

    def continue_from(self, other: SupervisedSession) -> None:
        """Take over the interpreter, shells and output of another session, whose files are here already."""
        interpreter = other.interpreter
        assert interpreter is not None, "it has one"
        loop = self._context.loop
        for output in (self.output, other.output):
            loop.forget(output.fd)
        self.output.close()
        self.output, self.tools = other.output, other.tools
        self.shells.remove()
        self.shells = Shells(self._context, self.output, self.home)
        self.shells.continue_from(other.shells)
        self.source = InterpreterSource(self._context, self.home, self.output, self._listen)
        self.source.interpreter = interpreter
        self.begin()
        interpreter.command(Kind.MOVE, home=other.home, to=self.home)
        loop.flush(interpreter.commands)
        self._left = other.home

    def greet(self) -> None:
        greeting = {"interpreter": self.results.present, "unguarded": self._context.guard.unguarded}
        self.host.send(frame(Kind.READY, json.dumps(greeting).encode()))

    # requests of the host

    def handle(self, kind: int, payload: bytes) -> None:
        """Handle a frame from the host. Raises a ``ProtocolError`` if it is not for a session."""
        if kind in (Kind.RUN, Kind.SETUP, Kind.FINISH):
            self._run_python(kind, payload)
        elif kind == Kind.ANSWER:
            self._answer(payload)
        elif kind == Kind.SHELL:
            self._run_shell(payload)
        elif kind == Kind.INTERRUPT:
            self._interrupt()
        elif kind == Kind.KILL:
            self._kill()
        elif kind == Kind.TOOLS:
            self.require_idle()
            self.tools = payload
        elif kind in workspace_files.REQUESTS:
            self.require_idle()
            for piece in workspace_files.answers(kind, payload, self._files):
                self.host.send(piece)
        else:
            raise ProtocolError(f"a session does not handle a frame of kind {kind}")

    def flush_answers(self) -> None:
        if self.interpreter and self.interpreter.answers:
            self._context.loop.flush(self.interpreter.answers)

    def require_idle(self) -> None:
        """Raise a ``ProtocolError`` if a block or a fork is in progress."""
        if self._block is not None or self.source.is_busy:
            raise ProtocolError("one thing at a time")

    def _begin_block(self, interpreter: int) -> RunningBlock:
        self.require_idle()
        if kept := self.output.take_kept():
            self.host.send(kept)
        return RunningBlock(interpreter)

    def _run_python(self, kind: int, payload: bytes) -> None:
        if len(payload) < RUN_HEAD.size:
            raise ProtocolError("a block without the number of its interpreter")
        number, _ = RUN_HEAD.unpack_from(payload)
        block, self._setup = self._begin_block(number), None
        if number != self.results.present:
            # the host has to know of the loss before the block runs
            self._end_block(block, ran=False)
            return
        if kind == Kind.SETUP:
            self._setup = payload[RUN_HEAD.size :]
            zygote = self._context.zygote
            if self.interpreter is None and zygote and self._setup in zygote.setups:
                self._end_block(block, report=_SUCCESS)
                return
        if kind == Kind.FINISH and (self.interpreter is None or self.interpreter.is_sealable):
            # no block has left anything
            self._end_block(block, report=_SUCCESS)
            return
        self._block, block.is_last = block, kind == Kind.FINISH
        if self._setup is None and self.interpreter and not self.interpreter.is_sealable:
            # as most do
            self._give(block, kind, payload)
            return
        self.source.get(
            partial(self._give, block, kind, payload),
            self._give_up,
            for_setup=self._setup is not None,
            is_fork=self.number != 0,
        )

    def _give(self, block: RunningBlock, kind: int, payload: bytes) -> None:
        assert self.interpreter is not None, "it is there by now"
        if block.interrupted:
            self._end_block(block, _INTERRUPTED, ran=False)
            return
        block.is_given = True
        if self._setup is None:
            self._context.is_touched = True
            self.interpreter.is_sealable = False
        if not self.interpreter.is_sealable:
            self.interpreter.declare_tools(self.tools)
        self.interpreter.run(kind, block.token, payload)
        self._context.loop.flush(self.interpreter.commands)
        # a short block has ended by then, which makes it one message for the host
        self._context.loop.wait_for_more()

    def _run_shell(self, payload: bytes) -> None:
        name, _, code = payload.partition(b"\n")
        language = name.decode(errors="replace")
        if language not in SHELLS:
            raise ProtocolError(f"no shell is called {language!r}")
        self._setup = None
        self._block = block = self._begin_block(0)
        self.source.make_zygote(partial(self._start_shell, block, language, code))

    def _start_shell(self, block: RunningBlock, language: str, code: bytes) -> None:
        if block.interrupted:
            self._end_block(block, _INTERRUPTED, ran=False)
            return
        self._context.is_touched = True
        try:
            block.shell = self.shells.start(language, code)
        except OSError as error:
            self.host.send(frame(Kind.OUTPUT, f"{language}: {error.strerror or error}\n".encode()))
            missing = isinstance(error, FileNotFoundError)
            self._end_block(block, _NOT_FOUND if missing else _NOT_STARTED, ran=False)
            return
        self._context.loop.on_readable(block.shell.fd, self._on_shell)

    def _interrupt(self) -> None:
        if (block := self._block) is None:
            return
        block.interrupted = True
        leader = block.shell or self.interpreter
        if leader and not self.source.is_busy:
            self._context.processes.interrupt(leader.pid)

    def _kill(self) -> None:
        if (block := self._block) is None:
            return
        if block.shell:
            self._end(self._started_since(block))
        else:
            self.end_interpreter("it was killed")
        self._end_block(block, KILLED, ended_here=True)
        self.prepare()

    def restart(self) -> None:
        """End everything and start anew. Raises :class:`OutOfControl`."""
        self.end_interpreter("it was killed", with_processes=True)
        if not self._context.has_room():
            raise OutOfControl
        if self._block:
            self._end_block(self._block, KILLED, ended_here=True)
        self.shells.reset()
        self.output.discard()
        self.prepare()

    def _answer(self, payload: bytes) -> None:
        block, interpreter = self._block, self.interpreter
        if block is None or block.shell or interpreter is None:
            # to a call of a block that has ended meanwhile
            return
        if not interpreter.answer(block.token, payload):
            self._lose(interpreter, _DEAF)
        self._context.loop.wait_for_more()

    # the source of interpreters

    def prepare(self) -> None:
        """In the main session, have an interpreter ready, so that the next block need not wait for it."""
        if self.number == 0:
            self.source.prepare()

    def _listen(self, interpreter: InterpreterProcess) -> None:
        self._context.loop.on_readable(interpreter.reports, self._on_reports)
        if interpreter.watching is not None:
            self._context.loop.on_readable(interpreter.watching, self._on_watched_end)

    def with_interpreter(self, work: Callable[[], None]) -> None:
        """Between two blocks, call ``work`` once there is an interpreter, or there can be none."""

        def give_up(problem: str) -> None:
            self._give_up(problem)
            work()

        self.source.get(work, give_up, is_fork=self.number != 0)

    def _give_up(self, problem: str) -> None:
        """Report that no interpreter has run the setup. The next request gets another interpreter."""
        self.results.lose(f"no interpreter can be started: {problem}")
        if self._block:
            self._end_block(self._block, ran=False)

    def on_zygote_end(self, zygote: InterpreterProcess) -> None:
        if self.source.on_zygote_end(zygote):
            self.results.lose("it ended")

    # what comes from the code

    def _on_output(self) -> None:
        block = self._block
        if block is None:
            self.output.keep()
        elif self.interpreter and not block.shell and is_readable(self.interpreter.reports):
            # the block has ended with that: one message to the host is faster than two
            self._on_reports()
        else:
            output = self.output.read_frame()
            self.host.send(output)
            if len(output) <= _LITTLE:
                self._context.loop.wait_for_more()

    def _on_reports(self) -> None:
        interpreter = self.interpreter
        if interpreter is None:
            return
        try:
            self._take_reports(interpreter)
        except EOFError:
            self._context.loop.forget(interpreter.reports)
        except ProtocolError:
            self._lose(interpreter, _FORGED)

    def _take_reports(self, interpreter: InterpreterProcess) -> None:
        for kind, payload in interpreter.receive():
            block, token, content = self._block, payload[:TOKEN_BYTES], payload[TOKEN_BYTES:]
            if block is None or block.shell or token != block.token:
                # a thread that outlives its block may call
                if kind not in (Kind.CALL, Kind.CANCEL):
                    raise ProtocolError(_FORGED)
            elif kind == Kind.REPORT and block.is_last:
                block.report = content
            elif kind == Kind.REPORT:
                if self._setup is not None and content[:1] == _SUCCESS:
                    interpreter.setups.add(self._setup)
                self._end_block(block, report=content)
            elif kind == Kind.ARTIFACT:
                block.add_artifact(content)
                self.host.send(frame(kind, content))
            elif kind in (Kind.CALL, Kind.CANCEL):
                # a person who is asked for an approval has seen what was written before
                self.host.hold(self.output.read_frame(), frame(kind, content))
            else:
                raise ProtocolError(_FORGED)
        if self.host.held:
            self.host.send()

    def _on_shell(self) -> None:
        shell = self._block and self._block.shell
        if shell and not shell.read():
            self._context.loop.forget(shell.fd)

    def on_child_end(self) -> None:
        """Check whether the process that has ended was this session's shell or interpreter."""
        processes, block = self._context.processes, self._block
        if block and block.shell and (status := processes.status(block.shell.pid)) is not None:
            self._end_block(block, exit_code(status))
        interpreter = self.interpreter
        if interpreter and (status := processes.status(interpreter.pid)) is not None:
            self._on_interpreter_end(interpreter, status)

    def _on_watched_end(self) -> None:
        if interpreter := self.interpreter:
            status = self._context.processes.status_of_watched(interpreter.pid)
            self._on_interpreter_end(interpreter, status)

    def _on_interpreter_end(self, interpreter: InterpreterProcess, status: int | None) -> None:
        with suppress(EOFError, ProtocolError):
            # what it has reported before still counts
            self._take_reports(interpreter)
        if self._block is not None and self._block.is_last:
            reason = _FINISHED
        else:
            reason = "it ended" if status is None else self.results.reason(status)
        self._lose(interpreter, reason, signal.SIGKILL if status is None else status)

    # ends

    def _lose(self, interpreter: InterpreterProcess, reason: str, status: int | None = None) -> None:
        """End what is left of an interpreter and of its processes, and prepare another one."""
        has_begun = self._block is not None and self._block.is_given and interpreter.has_begun
        is_wanted = self._block is None or not self._block.is_last
        self.source.drop()
        self.results.lose(reason)
        # orphans show only by their session whose they were
        self._end(lambda one: one.ancestor == interpreter.pid or self._context.is_orphan(one))
        self._context.processes.forget(interpreter.pid)
        if self._block and not self._block.shell:
            code = KILLED if status is None else exit_code(status)
            self._end_block(
                self._block, code, report=self._block.report, ran=has_begun, ended_here=status is None
            )
        # one that does not even start is not started again and again
        if interpreter.was_used and is_wanted:
            self.prepare()

    def _end_block(
        self,
        block: RunningBlock,
        code: int | None = None,
        *,
        report: bytes = b"",
        ran: bool = True,
        ended_here: bool = False,
    ) -> None:
        if block.interrupted:
            self._end(self._started_since(block))
        self._block = None
        if block.interpreter:
            self._remove_left()
        if block.shell:
            self._context.loop.forget(block.shell.fd)
            self.shells.on_end(block.shell)
        result = self.results.build(
            block.interpreter,
            code,
            ran=ran,
            ended_here=ended_here,
            # not what is written meanwhile: a background process may never stop writing
            output=self.output.read(),
            report=report,
            own=self.interpreter.pid if self.interpreter else None,
        )
        self.host.send(result)

    def _started_since(self, block: RunningBlock) -> Choice:
        """Selects the processes that were started since ``block`` began. Interpreters and other sessions' processes are not."""
        context, own = self._context, self.interpreter and self.interpreter.pid
        interpreters = context.interpreters

        def chosen(process: ProcessInfo) -> bool:
            if process.pid in interpreters or process.ancestor in context.keepers:
                return False
            if not block.may_have_started(process):
                return False
            return process.ancestor == own or (
                process.ancestor not in interpreters
                and not any(
                    process.session in other.shell_sessions
                    for other in context.sessions.values()
                    if other is not self
                )
            )

        return chosen

    def _end(self, chosen: Choice) -> None:
        if not self._context.processes.end(chosen):
            raise OutOfControl

    def end_interpreter(self, reason: str, *, with_processes: bool = False) -> None:
        """End the interpreter with everything that its blocks have left in this session. Raises :class:`OutOfControl`.

        ``with_processes``, if this session is the only one, the processes that the host has started end, too.
        """
        interpreter = self.source.drop()
        self._remove_left()
        # counted even if there was none, so that the host can distinguish the answer from older ones
        self.results.lose(reason)
        context = self._context
        if len(context.sessions) == 1:
            spared = set[int]() if with_processes else {*context.keepers}
            if context.zygote:
                spared.add(context.zygote.pid)
            if not context.processes.end_all(spared):
                raise OutOfControl
            context.is_touched = False
            if interpreter:
                context.processes.forget(interpreter.pid)
            return
        sessions, ancestor = self.shells.sessions, interpreter.pid if interpreter else 0
        self._end(lambda one: one.ancestor == ancestor or one.session in sessions or context.is_orphan(one))
        context.processes.forget(ancestor)

    def _remove_left(self) -> None:
        left, self._left = self._left, None
        if left is not None:
            remove_home(left)

    def close(self) -> None:
        """Close what this process holds for the session. Nothing of it runs any more."""
        self.source.drop()
        self._context.loop.forget(self.output.fd)
        self.output.close()
        self.shells.remove()
