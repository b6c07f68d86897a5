"""Where the interpreter of a branch comes from: a program that was started, or a fork of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from codeact_team.session.runner.supervisor.child import Interpreter
from codeact_team.session.runner.supervisor.forks import Fork, flush
from codeact_team.session.runner.supervisor.relay import Output
from codeact_team.session.runner.supervisor.surroundings import Surroundings


class Supply:
    """The interpreter of a branch.

    That of the session itself is a program that was started, as long as it runs nothing but setups. Before it would run
    a block it becomes the zygote: from then on, the interpreters that run blocks are forks of it. Where it cannot be
    forked it runs the blocks, and if it is lost another program is started. A branch has one interpreter only.

    Args:
        around: What the branches share.
        home: The directory that the code begins in.
        output: What it writes to.
        listen: Called with the interpreter when somebody has to listen to it.

    Attributes:
        interpreter: The present one, if there is one now.
    """

    def __init__(
        self, around: Surroundings, home: str, output: Output, listen: Callable[[Interpreter], None]
    ) -> None:
        self._around = around
        self._home = home
        self._output = output
        self._listen = listen
        self._fork: Fork | None = None
        self.interpreter: Interpreter | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a fork is under way."""
        return self._fork is not None

    def prepare(self) -> None:
        """Start a program, unless there is one or a fork does, so that the next block need not wait for it."""
        around = self._around
        if self.interpreter is None and around.zygote is None and not around.program.can_be_forked:
            # the next block tries again, and tells of it
            with suppress(OSError):
                self._start()

    def get(
        self,
        then: Callable[[], None],
        give_up: Callable[[str], None],
        *,
        for_setup: bool = False,
        is_branch: bool = False,
    ) -> None:
        """See that there is an interpreter.

        Args:
            then: Called when there is one.
            give_up: Called with the reason, if none with what the setup has made can be had.
            for_setup: Whether it is for a piece of the setup.
            is_branch: Whether there can be no other than the present one.
        """
        interpreter, zygote = self.interpreter, self._around.zygote
        if interpreter is not None and (for_setup or not interpreter.is_pristine):
            then()
        elif interpreter is not None:
            self.keep_pristine(partial(self.get, then, give_up))
        elif is_branch:
            give_up("that of a branch is the only one")
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

    def keep_pristine(self, then: Callable[[], None]) -> None:
        """Make the zygote of what is pristine yet, if it can be one, before anything else may reach it, and go on."""
        interpreter, guard = self.interpreter, self._around.guard
        if interpreter is None or not interpreter.is_pristine:
            then()
            return

        def done(problem: str | None) -> None:
            interpreter.is_pristine = False
            if problem is None:
                self._around.zygote, self.interpreter = interpreter, None
            else:
                guard.shield(None)
                self._listen(interpreter)
            then()

        interpreter.seal(guard.shield(interpreter.pid), guard.ruleset)
        self._begin(interpreter, (), done)

    def _start(self) -> None:
        around = self._around
        interpreter = Interpreter(self._output)
        is_pristine = around.keeps_zygote and not around.is_touched
        interpreter.start(around.program, around.family, is_pristine=is_pristine)
        flush(around.loop, interpreter.commands)
        self.take_over(interpreter)

    def take_over(self, interpreter: Interpreter) -> None:
        """Have this one from now on."""
        self.interpreter = interpreter
        self._listen(interpreter)

    def _fork_zygote(
        self, zygote: Interpreter, then: Callable[[], None], give_up: Callable[[str], None]
    ) -> None:
        def done(problem: str | None) -> None:
            if problem is None:
                self.take_over(child)
                then()
            else:
                self._do_without_zygote()
                give_up(problem)

        child = Interpreter(self._output)
        try:
            child.fork_from(zygote)
        except OSError:
            # a program that is started need not be passed anything
            self._do_without_zygote()
            raise
        zygote.fork([None], self._home)
        self._begin(zygote, [child], done)

    def _do_without_zygote(self) -> None:
        self._around.drop_zygote()
        # it would not be otherwise with another
        self._around.keeps_zygote = False

    def fork(
        self, homes: Sequence[str], children: Sequence[Interpreter], done: Callable[[str | None], None]
    ) -> None:
        """Fork the present one, which has been given what its forks need.

        Args:
            homes: Where the forks find copies of what is in the home of this branch.
            children: The forks.
            done: Called with ``None`` when they live, or with the reason if they do not.
        """
        interpreter = self.interpreter
        assert interpreter is not None, "there is one to fork"

        def resume(problem: str | None) -> None:
            if self.interpreter is interpreter:
                self._listen(interpreter)
            done(problem)

        interpreter.fork(homes, self._home)
        self._begin(interpreter, children, resume, even_if_dropped=True)

    def _begin(
        self,
        parent: Interpreter,
        children: Sequence[Interpreter],
        done: Callable[[str | None], None],
        *,
        even_if_dropped: bool = False,
    ) -> None:
        def conclude(problem: str | None) -> None:
            is_dropped, self._fork = self._fork is None, None
            if even_if_dropped or not is_dropped:
                done(problem)

        self._fork = Fork(self._around.loop, self._around.family, parent, children, conclude)

    def drop(self) -> Interpreter | None:
        """Give up the present one, which the caller ends, and a fork that is under way."""
        interpreter, self.interpreter = self.interpreter, None
        fork, self._fork = self._fork, None
        if fork is not None:
            fork.abandon("the interpreter was ended")
            if fork.parent is self._around.zygote:
                # it may be in the middle of it
                self._around.drop_zygote()
            elif self._around.zygote is None:
                self._around.guard.shield(None)
        if interpreter is not None:
            self.close(interpreter)
        return interpreter

    def close(self, interpreter: Interpreter) -> None:
        """Let go of what this process holds for one."""
        watching = () if interpreter.watching is None else (interpreter.watching,)
        for fd in (interpreter.reports, interpreter.commands.fd, interpreter.answers.fd, *watching):
            self._around.loop.forget(fd)
        interpreter.close()

    def zygote_ended(self, zygote: Interpreter) -> bool:
        """Take note that the zygote has ended; whether the next interpreter would have been forked from it."""
        if self._fork and self._fork.parent is zygote:
            self._fork.abandon("it ended")
            return False
        return self.interpreter is None
