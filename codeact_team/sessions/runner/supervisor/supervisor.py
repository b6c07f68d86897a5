"""The program that owns the stream to the host, starts what runs the code, and ends it.

Everything it does is an answer to something that can be read: a frame of the host's, a report of the interpreter's,
output, or the end of a process. It never waits for the code.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from codeact_team.sessions.protocol import TOKEN_BYTES, Kind, ProtocolError, frame
from codeact_team.sessions.runner.supervisor import files
from codeact_team.sessions.runner.supervisor.child import Interpreter, Program
from codeact_team.sessions.runner.supervisor.guard import Guard, adopt_orphans
from codeact_team.sessions.runner.supervisor.loop import Loop, is_readable
from codeact_team.sessions.runner.supervisor.pipes import PipeWriter
from codeact_team.sessions.runner.supervisor.processes import Choice, Family, OomScore, Relative
from codeact_team.sessions.runner.supervisor.relay import Host, HostGone, Output, fields_of
from codeact_team.sessions.runner.supervisor.results import KILLED, Accounts, Block, encode, exit_code
from codeact_team.sessions.runner.supervisor.shells import SHELLS, Shells

_NOT_STARTED, _NOT_FOUND = 126, 127
_FORGED = "it sent something that is no report of this block"
_DEAF = "it did not read the answers to its calls"


class _OutOfHand(Exception):
    """Something cannot be ended; whoever owns the sandbox has to clear it."""


class Supervisor:
    """Serves one host.

    Args:
        host: The stream to it.
        payload: The sources of the runner.

    Raises:
        OSError: If no interpreter can be started here.
    """

    def __init__(self, host: Host, payload: bytes) -> None:
        self._host = host
        self._accounts = Accounts()
        self._loop = Loop()
        self._loop.on_child(self._on_child)
        adopt_orphans()
        oom_score = OomScore()
        guard = Guard()
        greeting = {"python": sys.version.split()[0], "unguarded": guard.unguarded}
        self._greeting = frame(Kind.READY, encode(greeting).encode())
        self._family = Family(guard, oom_score)
        self._output = Output()
        self._shells = Shells(self._family, self._output.inner)
        self._program = Program(payload)
        self._block: Block | None = None
        self._lost: str | None = None
        self._from_host: dict[Kind, Callable[[bytes], None]] = {
            Kind.RUN: self._run_python,
            Kind.SHELL: self._run_shell,
            Kind.INTERRUPT: self._interrupt,
            Kind.KILL: self._kill,
            Kind.RESTART: self._restart,
            Kind.TOOLS: self._tools,
            Kind.ANSWER: self._answer,
            **{kind: self._file_request(kind) for kind in files.REQUESTS},
        }
        self._from_interpreter: dict[Kind, Callable[[Block, bytes], None]] = {
            Kind.REPORT: self._report,
            Kind.ARTIFACT: self._artifact,
            **{kind: self._to_host(kind) for kind in (Kind.CALL, Kind.CANCEL)},
        }
        self._loop.on_readable(host.fd, self._on_host)
        self._loop.on_readable(self._output.fd, self._on_output)
        self._interpreter: Interpreter | None = self._start_interpreter()

    def serve(self) -> None:
        """Serve until the host goes, or talks nonsense."""
        try:
            self._host.send(self._greeting)
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

    def _begin(self) -> Block:
        self._require_idle()
        if kept := self._output.begin_block():
            self._host.send(kept)
        return self._accounts.begin()

    def _run_python(self, payload: bytes) -> None:
        block = self._begin()
        if self._interpreter is None:
            self._interpreter = self._try_start()
        if self._lost is not None or self._interpreter is None:
            # whoever counts on its state has to hear of this before anything runs
            lost, self._lost = self._lost, None
            self._end_block(block, None, lost=lost, ran=False)
            return
        self._block = block
        self._interpreter.run(block.token, payload)
        self._flush(self._interpreter.commands)

    def _run_shell(self, payload: bytes) -> None:
        language, code = fields_of(payload, "language", "code")
        if language not in SHELLS:
            raise ProtocolError(f"nothing here runs {language!r}")
        block = self._begin()
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
        self._end_killed(block)
        if not self._interpreter:
            self._interpreter = self._try_start()

    def _restart(self, _: bytes) -> None:
        self._end_everything()
        if self._block:
            self._end_killed(self._block)
        self._lost = None
        self._shells.reset()
        self._output.discard()
        self._interpreter = self._try_start()
        self._host.send(self._greeting)

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
            self._lose(interpreter, _DEAF, KILLED)

    def _file_request(self, kind: Kind) -> Callable[[bytes], None]:
        def answer(payload: bytes) -> None:
            self._require_idle()
            for piece in files.answers(kind, payload):
                self._host.send(piece)

        return answer

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
            self._host.send(self._output.take())

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
            self._lose(interpreter, _FORGED, KILLED)

    def _take_reports(self, interpreter: Interpreter) -> None:
        for kind, payload in interpreter.receive():
            block, token = self._block, payload[:TOKEN_BYTES]
            if block is not None and not block.shell and token == block.token:
                self._from_interpreter[kind](block, payload[TOKEN_BYTES:])
            elif kind not in (Kind.CALL, Kind.CANCEL):
                raise ProtocolError(_FORGED)
            # a thread that its block has left behind may call
        self._host.send()

    def _report(self, block: Block, payload: bytes) -> None:
        self._end_block(block, None, report=payload)

    def _artifact(self, block: Block, payload: bytes) -> None:
        block.add_artifact(payload)
        self._host.send(frame(Kind.ARTIFACT, payload))

    def _to_host(self, kind: Kind) -> Callable[[Block, bytes], None]:
        def pass_on(_: Block, payload: bytes) -> None:
            # who is asked for an approval has seen what was written before
            self._host.hold(self._output.take(), frame(kind, payload))

        return pass_on

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
            self._lose(interpreter, self._accounts.reason(status), exit_code(status))

    # how things end

    def _lose(self, interpreter: Interpreter, reason: str, code: int) -> None:
        """End what is left of an interpreter and of what it has started, and begin with another."""
        self._interpreter = None
        # orphans say no more whose they were, but by their session; one that has left its shell's counts as ours
        sessions = self._shells.sessions
        self._end(lambda relative: relative.session not in sessions)
        if self._block and not self._block.shell:
            self._end_block(self._block, code, lost=reason, ran=interpreter.has_begun)
        else:
            self._lost = reason
        self._close(interpreter)
        # one that does not even start is not started again and again
        if interpreter.asked:
            self._interpreter = self._try_start()

    def _end_killed(self, block: Block) -> None:
        self._end_block(block, KILLED, lost=None if block.shell else "it was killed")

    def _end_block(
        self,
        block: Block,
        code: int | None,
        *,
        lost: str | None = None,
        report: bytes = b"",
        ran: bool = True,
    ) -> None:
        if block.interrupted:
            self._end(self._since(block))
        self._block = None
        if block.shell:
            self._loop.forget(block.shell.fd)
            self._shells.ended(block.shell)
        # what it has written comes before the result, and with it if it is little
        last = self._output.end_block(self._host)
        self._host.send(last, self._accounts.result(block, code, lost, report, ran=ran))

    def _since(self, block: Block) -> Choice:
        """Whatever has been started since ``block`` began, but the interpreter."""
        spared = self._interpreter.pid if self._interpreter else None

        def chosen(relative: Relative) -> bool:
            return relative.pid != spared and block.may_have_started(relative)

        return chosen

    def _end(self, chosen: Choice) -> None:
        if not self._family.end(chosen):
            raise _OutOfHand

    def _end_everything(self) -> None:
        interpreter, self._interpreter = self._interpreter, None
        if interpreter:
            self._close(interpreter)
        if not self._family.end_all():
            raise _OutOfHand

    def _start_interpreter(self) -> Interpreter:
        interpreter = Interpreter(self._program, self._family, self._output.inner)
        self._loop.on_readable(interpreter.reports, self._on_reports)
        self._flush(interpreter.commands)
        return interpreter

    def _try_start(self) -> Interpreter | None:
        try:
            return self._start_interpreter()
        except OSError as error:
            self._lost = f"no interpreter can be started: {error.strerror or error}"
            return None

    def _close(self, interpreter: Interpreter) -> None:
        self._loop.forget(interpreter.reports)
        self._loop.forget(interpreter.commands.fd)
        self._loop.forget(interpreter.answers.fd)
        interpreter.close()


def main(payload: bytes, arguments: list[str]) -> None:
    """Supervise until the host is gone.

    Raises:
        SystemExit: If it cannot start; the host has been told why.
    """
    host = Host()
    try:
        supervisor = Supervisor(host, payload)
    except Exception as error:
        # stderr is closed by now
        host.send(f"the supervisor cannot start: {error!r}\n".encode())
        sys.exit(1)
    supervisor.serve()
