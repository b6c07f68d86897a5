"""The program that owns the stream to the host, starts what runs the code, and ends it.

Everything it does is an answer to something that can be read: a frame of the host's, a report of the interpreter's,
output, or the end of a process. It never waits for the code.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from codeact_team.sessions.protocol import KIB, RUN_HEAD, TOKEN_BYTES, Kind, ProtocolError, frame
from codeact_team.sessions.runner.supervisor import workspace_files
from codeact_team.sessions.runner.supervisor.block_results import KILLED, Block, Results, exit_code
from codeact_team.sessions.runner.supervisor.child import Interpreter, Program
from codeact_team.sessions.runner.supervisor.guard import Guard
from codeact_team.sessions.runner.supervisor.pipes import PipeWriter
from codeact_team.sessions.runner.supervisor.poll_loop import Loop, is_readable
from codeact_team.sessions.runner.supervisor.process_family import Choice, Descendant, Family
from codeact_team.sessions.runner.supervisor.relay import Host, HostGone, Output
from codeact_team.sessions.runner.supervisor.shells import SHELLS, Shells
from codeact_team.system.kernel import adopt_orphans
from codeact_team.system.oom_score import OomScore

_NOT_STARTED, _NOT_FOUND = 126, 127
_LITTLE = 4 * KIB
"""So much output may have been written by a loop of prints, of which more comes."""
_FORGED = "it sent something that is no report of this block"
_DEAF = "it did not read the answers to its calls"


class _OutOfHand(Exception):
    """Something cannot be ended; whoever owns the sandbox has to clear it."""


class Supervisor:
    """Serves one host."""

    def __init__(self, host: Host, payload: bytes) -> None:
        self._host = host
        self._results = Results()
        self._loop = Loop()
        self._loop.on_child(self._on_child)
        adopt_orphans()
        oom_score = OomScore()
        guard = Guard()
        self._unguarded = guard.unguarded
        self._family = Family(guard, oom_score)
        self._output = Output()
        self._shells = Shells(self._family, self._output.inner)
        self._program = Program(payload)
        self._block: Block | None = None
        self._from_host: dict[Kind, Callable[[bytes], None]] = {
            Kind.RUN: self._run_python,
            Kind.SHELL: self._run_shell,
            Kind.INTERRUPT: self._interrupt,
            Kind.KILL: self._kill,
            Kind.RESTART: self._restart,
            Kind.TOOLS: self._tools,
            Kind.ANSWER: self._answer,
            **{kind: partial(self._file_request, kind) for kind in workspace_files.REQUESTS},
        }
        self._loop.on_readable(host.fd, self._on_host)
        self._loop.on_readable(self._output.fd, self._on_output, can_wait=True)
        self._interpreter: Interpreter | None = self._start_interpreter()

    def serve(self) -> None:
        """Serve until the host goes, or talks nonsense."""
        try:
            self._greet()
            self._loop.run()
        except (HostGone, ProtocolError, _OutOfHand):
            # its end is all that anybody could be told
            pass
        finally:
            self._family.end_all()
            self._shells.remove()

    # what comes from the host

    def _on_host(self) -> None:
        for kind, payload in self._host.receive():
            self._from_host[kind](payload)
        if self._interpreter and self._interpreter.answers:
            self._flush(self._interpreter.answers)

    def _greet(self) -> None:
        greeting = {"interpreter": self._results.present, "unguarded": self._unguarded}
        self._host.send(frame(Kind.READY, json.dumps(greeting).encode()))

    def _begin(self, interpreter: int) -> Block:
        self._require_idle()
        if kept := self._output.take_kept():
            self._host.send(kept)
        return Block(interpreter)

    def _run_python(self, payload: bytes) -> None:
        if len(payload) < RUN_HEAD.size:
            raise ProtocolError("a block says where it is to run")
        meant, _ = RUN_HEAD.unpack_from(payload)
        block = self._begin(meant)
        if self._interpreter is None and meant == self._results.present:
            try:
                self._interpreter = self._start_interpreter()
            except OSError as error:
                self._results.lost(f"no interpreter can be started: {error.strerror or error}")
        if self._interpreter is None or meant != self._results.present:
            # whoever counts on its state has to hear of this before anything runs
            self._end_block(block, ran=False)
            return
        self._block = block
        self._interpreter.run(block.token, payload)
        self._flush(self._interpreter.commands)
        # a short block has ended by then, which makes it one message for the host
        self._loop.wait_for_more()

    def _run_shell(self, payload: bytes) -> None:
        name, _, code = payload.partition(b"\n")
        language = name.decode(errors="replace")
        if language not in SHELLS:
            raise ProtocolError(f"nothing here runs {language!r}")
        block = self._begin(0)
        # Python code may have changed how writing to the pipe behaves; its interpreter looks to that itself
        os.set_blocking(self._output.inner, True)
        try:
            block.shell = self._shells.start(language, code)
        except OSError as error:
            self._host.send(frame(Kind.OUTPUT, f"{language}: {error.strerror or error}\n".encode()))
            missing = isinstance(error, FileNotFoundError)
            self._end_block(block, _NOT_FOUND if missing else _NOT_STARTED, ran=False)
            return
        self._block = block
        self._loop.on_readable(block.shell.fd, self._on_shell)

    def _interrupt(self, _: bytes) -> None:
        block = self._block
        leader = block and (block.shell or self._interpreter)
        if block and leader:
            block.interrupted = True
            self._family.interrupt(leader.pid)

    def _kill(self, _: bytes) -> None:
        if (block := self._block) is None:
            return
        if block.shell:
            self._end(self._since(block))
        else:
            self._end_everything()
        self._end_block(block, KILLED, ended_here=True)
        self._prepare_interpreter()

    def _restart(self, _: bytes) -> None:
        self._end_everything()
        if self._block:
            self._end_block(self._block, KILLED, ended_here=True)
        self._shells.reset()
        self._output.discard()
        self._prepare_interpreter()
        self._greet()

    def _tools(self, payload: bytes) -> None:
        self._require_idle()
        self._program.tools = payload
        if self._interpreter:
            self._interpreter.tell_tools(payload)
            self._flush(self._interpreter.commands)

    def _answer(self, payload: bytes) -> None:
        block, interpreter = self._block, self._interpreter
        if block is None or block.shell or interpreter is None:
            # to a call of a block that has ended meanwhile
            return
        if not interpreter.answer(block.token, payload):
            self._lose(interpreter, _DEAF)
        self._loop.wait_for_more()

    def _file_request(self, kind: Kind, payload: bytes) -> None:
        self._require_idle()
        for piece in workspace_files.answers(kind, payload):
            self._host.send(piece)

    def _require_idle(self) -> None:
        if self._block is not None:
            raise ProtocolError("one thing at a time")

    # what comes from the code

    def _on_output(self) -> None:
        block = self._block
        if block is None:
            self._output.keep()
        elif self._interpreter and not block.shell and is_readable(self._interpreter.reports):
            # the block has ended with that: one message to the host is faster than two
            self._on_reports()
        else:
            output = self._output.take()
            self._host.send(output)
            if len(output) <= _LITTLE:
                self._loop.wait_for_more()

    def _flush(self, pipe: PipeWriter) -> None:
        if pipe.flush():
            self._loop.forget(pipe.fd)
        else:
            self._loop.on_writable(pipe.fd, partial(self._flush, pipe))

    def _on_reports(self) -> None:
        interpreter = self._interpreter
        if interpreter is None:
            return
        try:
            self._take_reports(interpreter)
        except EOFError:
            self._loop.forget(interpreter.reports)
        except ProtocolError:
            self._lose(interpreter, _FORGED)

    def _take_reports(self, interpreter: Interpreter) -> None:
        for kind, payload in interpreter.receive():
            block, token, content = self._block, payload[:TOKEN_BYTES], payload[TOKEN_BYTES:]
            if block is None or block.shell or token != block.token:
                # a thread that its block has left behind may call
                if kind not in (Kind.CALL, Kind.CANCEL):
                    raise ProtocolError(_FORGED)
            elif kind == Kind.REPORT:
                self._end_block(block, report=content)
            elif kind == Kind.ARTIFACT:
                block.add_artifact(content)
                self._host.send(frame(kind, content))
            else:
                # who is asked for an approval has seen what was written before
                self._host.hold(self._output.take(), frame(kind, content))
        if self._host.held:
            self._host.send()

    def _on_shell(self) -> None:
        shell = self._block and self._block.shell
        if shell and not shell.read():
            self._loop.forget(shell.fd)

    def _on_child(self) -> None:
        self._family.reap()
        block = self._block
        if block and block.shell and (status := self._family.status(block.shell.pid)) is not None:
            self._end_block(block, exit_code(status))
        interpreter = self._interpreter
        if interpreter and (status := self._family.status(interpreter.pid)) is not None:
            with suppress(EOFError, ProtocolError):
                # what it has said before still counts
                self._take_reports(interpreter)
            self._lose(interpreter, self._results.reason(status), status)

    # how things end

    def _lose(self, interpreter: Interpreter, reason: str, status: int | None = None) -> None:
        """End what is left of an interpreter and of what it has started, and begin with another.

        ``status`` is how it ended, as :func:`os.waitpid` says it; ``None`` if it has not ended by itself.
        """
        self._interpreter = None
        self._results.lost(reason)
        # orphans say no more whose they were, but by their session; one that has left its shell's counts as ours
        sessions = self._shells.sessions
        self._end(lambda descendant: descendant.session not in sessions)
        if self._block and not self._block.shell:
            code = KILLED if status is None else exit_code(status)
            self._end_block(self._block, code, ran=interpreter.has_begun, ended_here=status is None)
        self._close(interpreter)
        # one that does not even start is not started again and again
        if interpreter.asked:
            self._prepare_interpreter()

    def _end_block(
        self,
        block: Block,
        code: int | None = None,
        *,
        report: bytes = b"",
        ran: bool = True,
        ended_here: bool = False,
    ) -> None:
        if block.interrupted:
            self._end(self._since(block))
        self._block = None
        if block.shell:
            self._loop.forget(block.shell.fd)
            self._shells.ended(block.shell)
        result = self._results.result(
            block,
            code,
            ran=ran,
            ended_here=ended_here,
            # not what is written meanwhile: a background process may write for ever
            output=self._output.read(),
            report=report,
            running=self._interpreter.pid if self._interpreter else None,
        )
        self._host.send(result)

    def _since(self, block: Block) -> Choice:
        """Whatever has been started since ``block`` began, but the interpreter."""
        spared = self._interpreter.pid if self._interpreter else None

        def chosen(descendant: Descendant) -> bool:
            return descendant.pid != spared and block.may_have_started(descendant)

        return chosen

    def _end(self, chosen: Choice) -> None:
        if not self._family.end(chosen):
            raise _OutOfHand

    def _end_everything(self) -> None:
        interpreter, self._interpreter = self._interpreter, None
        # numbered on even if there was none, so that whoever has asked for another can tell the answer from older ones
        self._results.lost("it was killed")
        if interpreter:
            self._close(interpreter)
        if not self._family.end_all():
            raise _OutOfHand

    def _start_interpreter(self) -> Interpreter:
        interpreter = Interpreter(self._program, self._family, self._output.inner)
        self._loop.on_readable(interpreter.reports, self._on_reports)
        self._flush(interpreter.commands)
        return interpreter

    def _prepare_interpreter(self) -> None:
        """Start an interpreter, so that the next block need not wait for it."""
        if self._interpreter is None:
            # the next block tries again, and tells of it
            with suppress(OSError):
                self._interpreter = self._start_interpreter()

    def _close(self, interpreter: Interpreter) -> None:
        self._loop.forget(interpreter.reports)
        self._loop.forget(interpreter.commands.fd)
        self._loop.forget(interpreter.answers.fd)
        interpreter.close()


def main(payload: bytes, load: Callable[[str], object], arguments: list[str]) -> None:
    """Supervise until the host is gone."""
    host = Host()
    try:
        supervisor = Supervisor(host, payload)
    except Exception as error:
        # stderr is closed by now
        host.send(f"the supervisor cannot start: {error!r}\n".encode())
        sys.exit(1)
    supervisor.serve()
