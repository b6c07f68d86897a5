"""Where the interpreter of a session comes from: a program that is started, or a fork of a sealed interpreter."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial

from codeact_team.sandbox.system.framing import ProtocolError
from codeact_team.session.protocol import TOKEN_BYTES, Kind
from codeact_team.session.runner.supervisor.interpreter_process import InterpreterProcess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from codeact_team.session.runner.supervisor.interpreter_process import Context
    from codeact_team.session.runner.supervisor.streams import OutputPipe

_MAX_REASON = 2000
_UNREADABLE = "the interpreter's answer could not be read"


class _ForkInProgress:
    """A fork of an interpreter, from the request until all forks live, or none does.

    Attributes:
        parent: The interpreter that forks.
    """

    def __init__(
        self,
        context: Context,
        parent: InterpreterProcess,
        children: Sequence[InterpreterProcess],
        done: Callable[[str | None], None],
    ) -> None:
        self._loop = context.loop
        self._processes = context.processes
        self.parent = parent
        self._children = children
        self._done = done
        self._silent = set(children)
        """The forks that have reported nothing yet."""
        self._problem: str | None = None
        self._answered = False
        self._loop.on_readable(parent.reports, self._on_reports)
        for child in children:
            self._loop.on_readable(child.control, partial(self._on_birth, child))
        self._loop.flush(parent.commands)

    def abandon(self, reason: str) -> None:
        self._loop.forget(self.parent.reports)
        for child in self._children:
            self._loop.forget(child.control)
        parent, forks = self.parent.pid, {child.pid for child in self._children if child.pid}
        # a parent has no descendants but its forks; forks that have not reported yet may be in the middle of copying
        self._processes.end(
            lambda one: one.ancestor in forks or (one.ancestor == parent and one.pid != parent)
        )
        for child in self._children:
            self._processes.forget(child.pid)
            child.close()
        self._done(reason)

    def _on_reports(self) -> None:
        try:
            for kind, payload in self.parent.receive():
                if kind == Kind.FORKED:
                    self._answered = True
                    # a refused fork has ended as well; this says why
                    self._problem = _refusal(payload[TOKEN_BYTES:]) or self._problem
                elif kind not in (Kind.CALL, Kind.CANCEL):
                    raise ProtocolError
        except (EOFError, ProtocolError):
            self._answered, self._problem = True, _UNREADABLE
        self._conclude()

    def _on_birth(self, child: InterpreterProcess) -> None:
        self._loop.forget(child.control)
        self._silent.discard(child)
        child.pid, problem = child.receive_birth()
        self._problem = self._problem or problem or None
        self._conclude()

    def _conclude(self) -> None:
        if not self._answered or (self._silent and self._problem is None):
            return
        if self._problem is None and not all(map(self._is_genuine, self._children)):
            self._problem = _UNREADABLE
        if self._problem is not None:
            self.abandon(self._problem)
            return
        self._loop.forget(self.parent.reports)
        self._done(None)

    def _is_genuine(self, child: InterpreterProcess) -> bool:
        """Whether the process is a child of this one by now, or one of its parent. Otherwise the report was forged."""
        if self._processes.adopt(child.pid):
            return True
        child.watching = self._processes.watch(child.pid, self.parent.pid)
        return child.watching is not None


def _refusal(payload: bytes) -> str | None:
    try:
        refused = json.loads(payload)["refused"]
    except (ValueError, LookupError, TypeError):
        return _UNREADABLE
    return None if refused is None else str(refused)[:_MAX_REASON]


class InterpreterSource:
    """The source of a session's interpreter.

    The main session starts a program, which runs nothing but setups. Before it would run a block, it is sealed and
    becomes the zygote; the interpreters that run blocks are forks of that. If it cannot be sealed, it runs the blocks
    itself, and another program is started when it is lost. A fork of a session has one interpreter and gets no other.

    Attributes:
        interpreter: The present interpreter, if there is one.
    """

    def __init__(
        self, context: Context, home: str, output: OutputPipe, listen: Callable[[InterpreterProcess], None]
    ) -> None:
        self._context = context
        self._home = home
        self._output = output
        self._listen = listen
        self._fork: _ForkInProgress | None = None
        self.interpreter: InterpreterProcess | None = None

    @property
    def is_busy(self) -> bool:
        return self._fork is not None

    def prepare(self) -> None:
        """Start a program now if the next block would have to wait for one."""
        context = self._context
        if self.interpreter is None and context.zygote is None and not context.is_plain:
            # the next block tries again, and reports the failure
            with suppress(OSError):
                self._start()

    def get(
        self,
        then: Callable[[], None],
        give_up: Callable[[str], None],
        *,
        for_setup: bool = False,
        is_fork: bool = False,
    ) -> None:
        interpreter, zygote = self.interpreter, self._context.zygote
        if interpreter is not None and (for_setup or not interpreter.is_sealable):
            then()
        elif interpreter is not None:
            self.make_zygote(partial(self.get, then, give_up))
        elif is_fork:
            give_up("a fork has no other interpreter")
        else:
            try:
                if zygote is not None:
                    self._fork_zygote(zygote, then, give_up)
                    return
                self._start()
            except OSError as error:
                give_up(str(error.strerror or error))
            else:
                self.get(then, give_up, for_setup=for_setup)

    def make_zygote(self, then: Callable[[], None]) -> None:
        """Seal the unused interpreter as zygote, if there is one, before user code can reach it; then continue."""
        interpreter, guard = self.interpreter, self._context.guard
        if interpreter is None or not interpreter.is_sealable:
            then()
            return

        def done(problem: str | None) -> None:
            interpreter.is_sealable = False
            if problem is None:
                self._context.zygote, self.interpreter = interpreter, None
            else:
                guard.shield(None)
                self._listen(interpreter)
            then()

        interpreter.seal(guard.shield(interpreter.pid), guard.ruleset)
        self._begin_fork(interpreter, (), done)

    def _start(self) -> None:
        context = self._context
        interpreter = InterpreterProcess(self._output)
        interpreter.start(context, is_sealable=context.keeps_zygote and not context.is_touched)
        context.loop.flush(interpreter.commands)
        self._use(interpreter)

    def _use(self, interpreter: InterpreterProcess) -> None:
        self.interpreter = interpreter
        self._listen(interpreter)

    def _fork_zygote(
        self, zygote: InterpreterProcess, then: Callable[[], None], give_up: Callable[[str], None]
    ) -> None:
        def done(problem: str | None) -> None:
            if problem is None:
                self._use(child)
                then()
            else:
                self._disable_zygote()
                give_up(problem)

        child = InterpreterProcess(self._output)
        try:
            child.fork_from(zygote)
        except OSError:
            # a program that is started needs no descriptors sent
            self._disable_zygote()
            raise
        zygote.command(Kind.FORK, directories=[None], home=self._home)
        self._begin_fork(zygote, [child], done)

    def _disable_zygote(self) -> None:
        self._context.drop_zygote()
        # another one would fail as well
        self._context.keeps_zygote = False

    def fork(
        self, homes: Sequence[str], children: Sequence[InterpreterProcess], done: Callable[[str | None], None]
    ) -> None:
        interpreter = self.interpreter
        assert interpreter is not None, "there is one to fork"

        def resume(problem: str | None) -> None:
            if self.interpreter is interpreter:
                self._listen(interpreter)
            done(problem)

        interpreter.command(Kind.FORK, directories=homes, home=self._home)
        self._begin_fork(interpreter, children, resume, even_if_dropped=True)

    def _begin_fork(
        self,
        parent: InterpreterProcess,
        children: Sequence[InterpreterProcess],
        done: Callable[[str | None], None],
        *,
        even_if_dropped: bool = False,
    ) -> None:
        def conclude(problem: str | None) -> None:
            is_dropped, self._fork = self._fork is None, None
            if even_if_dropped or not is_dropped:
                done(problem)

        self._fork = _ForkInProgress(self._context, parent, children, conclude)

    def drop(self) -> InterpreterProcess | None:
        """Give up the present interpreter, whose process the caller ends, and a fork in progress."""
        interpreter, self.interpreter = self.interpreter, None
        fork, self._fork = self._fork, None
        if fork is not None:
            fork.abandon("the interpreter was ended")
            if fork.parent is self._context.zygote:
                # it may be in the middle of a fork
                self._context.drop_zygote()
            elif self._context.zygote is None:
                self._context.guard.shield(None)
        if interpreter is not None:
            interpreter.close(self._context.loop)
        return interpreter

    def on_zygote_end(self, zygote: InterpreterProcess) -> bool:
        """Abandon a fork of a zygote that has ended. Returns whether the next interpreter would have been a fork of it."""
        if self._fork and self._fork.parent is zygote:
            self._fork.abandon("it ended")
            return False
        return self.interpreter is None
