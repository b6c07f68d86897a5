"""One line of a session: an interpreter, its shells and its files, for one who asks. A session has one, and may have branches.

Everything it does is an answer to something that can be read: a frame of the host's, a report of the interpreter's,
output, or the end of a process. It never waits for the code.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from codeact_team.core import trees
from codeact_team.session.protocol import KIB, RUN_HEAD, TOKEN_BYTES, Kind, ProtocolError, frame
from codeact_team.session.runner.supervisor import workspace_files
from codeact_team.session.runner.supervisor.block_results import KILLED, Block, Results, exit_code
from codeact_team.session.runner.supervisor.child import Interpreter
from codeact_team.session.runner.supervisor.forks import flush
from codeact_team.session.runner.supervisor.poll_loop import is_readable
from codeact_team.session.runner.supervisor.process_family import Choice, Descendant
from codeact_team.session.runner.supervisor.relay import BranchHost, Host, Output
from codeact_team.session.runner.supervisor.shells import SHELLS, Shells
from codeact_team.session.runner.supervisor.supply import Supply
from codeact_team.session.runner.supervisor.surroundings import OutOfHand, Surroundings

_NOT_STARTED, _NOT_FOUND = 126, 127
_INTERRUPTED = 130
_LITTLE = 4 * KIB
"""So much output may have been written by a loop of prints, of which more comes."""
_FORGED = "it sent something that is no report of this block"
_DEAF = "it did not read the answers to its calls"
_SUCCESS = b"\0"
"""How the report of a block begins that has not failed."""


def remove_home(directory: str) -> None:
    """Remove the directory of a branch that has ended, as far as that is possible."""
    # other branches may write to it, by its absolute path
    with suppress(OSError):
        trees.remove(directory)


class Branch:
    """One line of a session.

    Args:
        around: What it shares with others.
        number: Its number; 0 for the session itself, which has other interpreters where one is lost.
        host: Where what it says goes.
        home: The directory that its code begins in.

    Attributes:
        results: How its blocks end.
        supply: Where its interpreter comes from.
        shells: Its shells.
        output: What they all write to.
        tools: The host's functions, as the host declares them; ``None`` as long as it does not.
    """

    def __init__(self, around: Surroundings, number: int, host: Host | BranchHost, home: str) -> None:
        self._around = around
        self.number = number
        self.host = host
        self.home = home
        self.results = Results(around.usage)
        self.output = Output()
        self.shells = Shells(around.family, self.output, home)
        self.supply = Supply(around, home, self.output, self._listen)
        self.tools: bytes | None = None
        # the session's own: the current directory, whatever its name is by now
        self._files = os.fsencode(home) if number else b""
        self._left: str | None = None
        """A directory that is removed once the interpreter has left it."""
        self._block: Block | None = None
        self._setup: bytes | None = None
        """The block's code, if it is a setup."""
        self._from_host: dict[Kind, Callable[[bytes], None]] = {
            Kind.RUN: partial(self._run_python, Kind.RUN),
            Kind.SETUP: partial(self._run_python, Kind.SETUP),
            Kind.SHELL: self._run_shell,
            Kind.INTERRUPT: self._interrupt,
            Kind.KILL: self._kill,
            Kind.TOOLS: self._take_tools,
            Kind.ANSWER: self._answer,
            **{kind: partial(self._file_request, kind) for kind in workspace_files.REQUESTS},
        }

    @property
    def interpreter(self) -> Interpreter | None:
        """The present one, if there is one now."""
        return self.supply.interpreter

    def begin(self) -> None:
        """Begin to listen to what is there."""
        self._around.loop.on_readable(self.output.fd, self._on_output, can_wait=True)
        if self.interpreter:
            self._listen(self.interpreter)

    def be_fork_of(self, other: Branch) -> None:
        """Have a fork of another's interpreter, which is told to fork next. Raises an ``OSError``."""
        assert other.interpreter is not None, "it has one"
        child = Interpreter(self.output)
        child.fork_from(other.interpreter)
        self.supply.interpreter = child
        self.tools = other.tools
        self.shells.go_on_from(other.shells)

    def go_on_from(self, other: Branch) -> None:
        """Go on where another has got to, of which nothing is left; the files are here already."""
        interpreter = other.interpreter
        assert interpreter is not None, "it has one"
        loop = self._around.loop
        for output in (self.output, other.output):
            loop.forget(output.fd)
        self.output.close()
        self.output, self.tools = other.output, other.tools
        self.shells.remove()
        self.shells = Shells(self._around.family, self.output, self.home)
        self.shells.go_on_from(other.shells)
        self.supply = Supply(self._around, self.home, self.output, self._listen)
        self.supply.interpreter = interpreter
        self.begin()
        interpreter.move(other.home, self.home)
        flush(loop, interpreter.commands)
        self._left = other.home

    def greet(self) -> None:
        """Tell the host that this can be asked."""
        greeting = {"interpreter": self.results.present, "unguarded": self._around.guard.unguarded}
        self.host.send(frame(Kind.READY, json.dumps(greeting).encode()))

    # what comes from the host

    def take(self, kind: Kind, payload: bytes) -> None:
        """Do what a frame of the host's says. Raises :class:`ProtocolError` for one that is for others."""
        if (do := self._from_host.get(kind)) is None:
            raise ProtocolError(f"a branch does not do {kind.name}")
        do(payload)

    def flush_answers(self) -> None:
        """Write the answers that came together."""
        if self.interpreter and self.interpreter.answers:
            flush(self._around.loop, self.interpreter.answers)

    def require_idle(self) -> None:
        if self._block is not None or self.supply.is_busy:
            raise ProtocolError("one thing at a time")

    def _begin(self, interpreter: int) -> Block:
        self.require_idle()
        if kept := self.output.take_kept():
            self.host.send(kept)
        return Block(interpreter)

    def _run_python(self, kind: Kind, payload: bytes) -> None:
        if len(payload) < RUN_HEAD.size:
            raise ProtocolError("a block says where it is to run")
        meant, _ = RUN_HEAD.unpack_from(payload)
        block, self._setup = self._begin(meant), None
        if meant != self.results.present:
            # whoever counts on its state has to hear of this before anything runs
            self._end_block(block, ran=False)
            return
        if kind == Kind.SETUP:
            self._setup = payload[RUN_HEAD.size :]
            zygote = self._around.zygote
            if self.interpreter is None and zygote and self._setup in zygote.setups:
                self._end_block(block, report=_SUCCESS)
                return
        self._block = block
        self.supply.get(
            partial(self._give, block, kind, payload),
            self._give_up,
            for_setup=self._setup is not None,
            is_branch=self.number != 0,
        )

    def _give(self, block: Block, kind: Kind, payload: bytes) -> None:
        assert self.interpreter is not None, "it is there by now"
        if block.interrupted:
            self._end_block(block, _INTERRUPTED, ran=False)
            return
        block.is_given = True
        if self._setup is None:
            self._around.is_touched = True
            self.interpreter.is_pristine = False
        if not self.interpreter.is_pristine:
            self.interpreter.tell_tools(self.tools)
        self.interpreter.run(kind, block.token, payload)
        flush(self._around.loop, self.interpreter.commands)
        # a short block has ended by then, which makes it one message for the host
        self._around.loop.wait_for_more()

    def _run_shell(self, payload: bytes) -> None:
        name, _, code = payload.partition(b"\n")
        language = name.decode(errors="replace")
        if language not in SHELLS:
            raise ProtocolError(f"nothing here runs {language!r}")
        self._setup = None
        self._block = block = self._begin(0)
        self.supply.keep_pristine(partial(self._start_shell, block, language, code))

    def _start_shell(self, block: Block, language: str, code: bytes) -> None:
        if block.interrupted:
            self._end_block(block, _INTERRUPTED, ran=False)
            return
        self._around.is_touched = True
        try:
            block.shell = self.shells.start(language, code)
        except OSError as error:
            self.host.send(frame(Kind.OUTPUT, f"{language}: {error.strerror or error}\n".encode()))
            missing = isinstance(error, FileNotFoundError)
            self._end_block(block, _NOT_FOUND if missing else _NOT_STARTED, ran=False)
            return
        self._around.loop.on_readable(block.shell.fd, self._on_shell)

    def _interrupt(self, _: bytes) -> None:
        if (block := self._block) is None:
            return
        block.interrupted = True
        leader = block.shell or self.interpreter
        if leader and not self.supply.is_busy:
            self._around.family.interrupt(leader.pid)

    def _kill(self, _: bytes) -> None:
        if (block := self._block) is None:
            return
        if block.shell:
            self._end(self._since(block))
        else:
            self.end_interpreter("it was killed")
        self._end_block(block, KILLED, ended_here=True)
        self.prepare()

    def restart(self) -> None:
        """End everything, and begin anew."""
        self.end_interpreter("it was killed")
        if not self._around.family.has_room():
            raise OutOfHand
        if self._block:
            self._end_block(self._block, KILLED, ended_here=True)
        self.shells.reset()
        self.output.discard()
        self.prepare()

    def _take_tools(self, payload: bytes) -> None:
        self.require_idle()
        self.tools = payload

    def _answer(self, payload: bytes) -> None:
        block, interpreter = self._block, self.interpreter
        if block is None or block.shell or interpreter is None:
            # to a call of a block that has ended meanwhile
            return
        if not interpreter.answer(block.token, payload):
            self._lose(interpreter, _DEAF)
        self._around.loop.wait_for_more()

    def _file_request(self, kind: Kind, payload: bytes) -> None:
        self.require_idle()
        for piece in workspace_files.answers(kind, payload, self._files):
            self.host.send(piece)

    # where interpreters come from

    def prepare(self) -> None:
        """Have an interpreter ready, if this is the session itself, so that the next block need not wait for it."""
        if self.number == 0:
            self.supply.prepare()

    def _listen(self, interpreter: Interpreter) -> None:
        self._around.loop.on_readable(interpreter.reports, self._on_reports)
        if interpreter.watching is not None:
            self._around.loop.on_readable(interpreter.watching, self._on_watched_end)

    def with_interpreter(self, work: Callable[[], None]) -> None:
        """Do what needs the interpreter, between two blocks, once there is one, or none can be had."""

        def give_up(problem: str) -> None:
            self._give_up(problem)
            work()

        self.supply.get(work, give_up, is_branch=self.number != 0)

    def _give_up(self, problem: str) -> None:
        """There is no interpreter with what the setup has made; whoever asks next gets another."""
        self.results.lost(f"no interpreter can be started: {problem}")
        if self._block:
            self._end_block(self._block, ran=False)

    def zygote_ended(self, zygote: Interpreter) -> None:
        """The zygote has ended, whatever the reason."""
        if self.supply.zygote_ended(zygote):
            self.results.lost("it ended")

    # what comes from the code

    def _on_output(self) -> None:
        block = self._block
        if block is None:
            self.output.keep()
        elif self.interpreter and not block.shell and is_readable(self.interpreter.reports):
            # the block has ended with that: one message to the host is faster than two
            self._on_reports()
        else:
            output = self.output.take()
            self.host.send(output)
            if len(output) <= _LITTLE:
                self._around.loop.wait_for_more()

    def _on_reports(self) -> None:
        interpreter = self.interpreter
        if interpreter is None:
            return
        try:
            self._take_reports(interpreter)
        except EOFError:
            self._around.loop.forget(interpreter.reports)
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
                if self._setup is not None and content[:1] == _SUCCESS:
                    interpreter.setups.add(self._setup)
                self._end_block(block, report=content)
            elif kind == Kind.ARTIFACT:
                block.add_artifact(content)
                self.host.send(frame(kind, content))
            elif kind in (Kind.CALL, Kind.CANCEL):
                # who is asked for an approval has seen what was written before
                self.host.hold(self.output.take(), frame(kind, content))
            else:
                raise ProtocolError(_FORGED)
        if self.host.held:
            self.host.send()

    def _on_shell(self) -> None:
        shell = self._block and self._block.shell
        if shell and not shell.read():
            self._around.loop.forget(shell.fd)

    def on_child(self) -> None:
        """Look whether what has ended was this branch's."""
        family, block = self._around.family, self._block
        if block and block.shell and (status := family.status(block.shell.pid)) is not None:
            self._end_block(block, exit_code(status))
        interpreter = self.interpreter
        if interpreter and (status := family.status(interpreter.pid)) is not None:
            self._on_end(interpreter, status)

    def _on_watched_end(self) -> None:
        if interpreter := self.interpreter:
            self._on_end(interpreter, self._around.family.status_of_watched(interpreter.pid))

    def _on_end(self, interpreter: Interpreter, status: int | None) -> None:
        with suppress(EOFError, ProtocolError):
            # what it has said before still counts
            self._take_reports(interpreter)
        reason = "it ended" if status is None else self.results.reason(status)
        self._lose(interpreter, reason, signal.SIGKILL if status is None else status)

    # how things end

    def _lose(self, interpreter: Interpreter, reason: str, status: int | None = None) -> None:
        """End what is left of an interpreter and of what it has started, and begin with another.

        ``status`` is how it ended, as :func:`os.waitpid` says it; ``None`` if it has not ended by itself.
        """
        has_begun = self._block is not None and self._block.is_given and interpreter.has_begun
        self.supply.drop()
        self.results.lost(reason)
        self._end(self._of(interpreter))
        self._around.family.forget(interpreter.pid)
        if self._block and not self._block.shell:
            code = KILLED if status is None else exit_code(status)
            self._end_block(self._block, code, ran=has_begun, ended_here=status is None)
        # one that does not even start is not started again and again
        if interpreter.asked:
            self.prepare()

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
        if block.interpreter:
            self._remove_left()
        if block.shell:
            self._around.loop.forget(block.shell.fd)
            self.shells.ended(block.shell)
        result = self.results.result(
            block,
            code,
            ran=ran,
            ended_here=ended_here,
            # not what is written meanwhile: a background process may write for ever
            output=self.output.read(),
            report=report,
            own=self.interpreter.pid if self.interpreter else None,
            living=self._around.interpreters,
        )
        self.host.send(result)

    def _of(self, interpreter: Interpreter) -> Choice:
        """An interpreter, whatever it has started, and orphans: these say whose they were by their session only."""

        def chosen(descendant: Descendant) -> bool:
            return descendant.line == interpreter.pid or self._around.is_of_nobody(descendant)

        return chosen

    def _since(self, block: Block) -> Choice:
        """Whatever has been started since ``block`` began, but interpreters, and what other branches have started."""
        around, own = self._around, self.interpreter and self.interpreter.pid
        interpreters = around.interpreters

        def chosen(descendant: Descendant) -> bool:
            if descendant.pid in interpreters or not block.may_have_started(descendant):
                return False
            return descendant.line == own or (
                descendant.line not in interpreters
                and not any(
                    descendant.session in other.shells.sessions
                    for other in around.branches.values()
                    if other is not self
                )
            )

        return chosen

    def _end(self, chosen: Choice) -> None:
        if not self._around.family.end(chosen):
            raise OutOfHand

    def end_interpreter(self, reason: str) -> None:
        """End the interpreter with all that runs here."""
        interpreter = self.supply.drop()
        self._remove_left()
        # numbered on even if there was none, so that whoever has asked for another can tell the answer from older ones
        self.results.lost(reason)
        around = self._around
        if len(around.branches) == 1:
            if not around.family.end_all(around.zygote.pid if around.zygote else None):
                raise OutOfHand
            around.is_touched = False
            if interpreter:
                around.family.forget(interpreter.pid)
            return
        sessions, line = self.shells.sessions, interpreter.pid if interpreter else 0
        self._end(lambda one: one.line == line or one.session in sessions or around.is_of_nobody(one))
        around.family.forget(line)

    def _remove_left(self) -> None:
        left, self._left = self._left, None
        if left is not None:
            remove_home(left)

    def close(self) -> None:
        """Let go of what this process holds for it. Nothing of it runs any more."""
        self.supply.drop()
        self._around.loop.forget(self.output.fd)
        self.output.close()
        self.shells.remove()
