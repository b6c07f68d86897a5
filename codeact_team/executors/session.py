"""Runs code blocks in a living interpreter, which can be forked."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from pydantic import Field, field_validator

from codeact_team.core.aio import FairLock, to_the_end
from codeact_team.core.execution import HostTools, SessionResult
from codeact_team.core.executor_interface import Checkpoint, Emit, SessionCodeExecutor
from codeact_team.errors import ForkError, SandboxError, SettingError
from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.executors.environment import Environment
from codeact_team.executors.lifecycle import Generation, Lifecycle
from codeact_team.executors.processes import ProcessServers
from codeact_team.executors.running import (
    AnyRunner,
    BlockError,
    BoundedOutput,
    Call,
    CodeRunner,
    Setup,
    require_size,
)
from codeact_team.executors.settings import ExecutorConfig
from codeact_team.executors.workspace.workspace import SandboxWorkspace
from codeact_team.sandbox.base import KILLED, STOPPED, Exit
from codeact_team.session.connection import Report, read_report
from codeact_team.session.host import Session, add_artifact
from codeact_team.session.processes import ProcessServer
from codeact_team.session.protocol import MAX_FORKS

logger = logging.getLogger(__name__)

_LANGUAGES = {"python": "python", "sh": "sh", "shell": "sh", "bash": "bash"}
"""The languages of a session: by label, the interpreter or shell that runs them."""
_MAX_NAMES = 40
"""The most names of one call that are reported."""

_MODULE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_FINISH_TIME = 1.0
"""Seconds that an interpreter may take to end in order."""
_UNREADABLE = "The interpreter's report of the block could not be read."
_FORK_LOSS = "The interpreter was lost: {}. This fork of the session has ended with it: its variables and files are gone."


class SessionConfig(ExecutorConfig):
    """Settings that every session executor has."""

    modules: dict[str, str] = Field(default_factory=dict)
    """Modules that are there from the start: name in the code to module, such as `np: numpy`."""
    setup: str = ""
    """Python code that runs in each fresh interpreter before the first block."""

    @field_validator("modules")
    @classmethod
    def _importable(cls, modules: dict[str, str]) -> dict[str, str]:
        for name, module in modules.items():
            if not name.isidentifier() or not _MODULE.fullmatch(module):
                raise ValueError(f"{name!r}: {module!r} is not a name and a module, as in `np: numpy`")
        return modules


class LivingInterpreter(CodeRunner[tuple[str, str], SessionResult]):
    """Runs Python blocks in one interpreter, and shell blocks beside it."""

    result_type = SessionResult
    lives_on = True
    loss = (
        "The interpreter was lost: {}. Variables, imports, functions and running processes are gone. The next code runs "
        "in a fresh one."
    )
    loss_before = (
        "The interpreter of the earlier blocks was lost: {}. Their variables, imports and functions are gone; this block "
        "runs in a fresh one."
    )

    def __init__(self, config: SessionConfig) -> None:
        super().__init__(_LANGUAGES)
        self._session: Session | None = None
        self._servers = ProcessServers()
        """The process servers of other users."""
        imports = "\n".join(f"import {module} as {name}" for name, module in config.modules.items())
        self.add_setup(imports, may_read_data=False)
        self.add_setup(config.setup)

    def forked(self, session: Session) -> LivingInterpreter:
        """The interpreter of a fork of the session, with all that the setup has done here."""
        fork = copy(self)
        fork.setup, fork._session, fork._servers = [*self.setup], session, ProcessServers()
        fork.loss = fork.loss_before = _FORK_LOSS
        return fork

    def add_setup(self, code: str, *, may_read_data: bool = True) -> None:
        """Run ``code`` in each fresh interpreter. The same code is added once."""
        failure = f"the setup of the interpreter failed:\n{code}\n"
        setup = Setup("python", code, failure, may_read_data)
        if code.strip() and setup not in self.setup:
            self.setup.append(setup)

    @property
    def session(self) -> Session | None:
        """The session, while it is alive."""
        return self._session if self._session is not None and self._session.alive else None

    @property
    def interpreter(self) -> int | None:
        return None if (session := self.session) is None else session.interpreter

    @property
    def unit(self) -> str | None:
        return None if self._session is None else self._session.unit

    @property
    def interpreter_loss(self) -> str:
        return "" if self._session is None else self._session.interpreter_loss

    async def open(self, environment: Environment) -> None:
        if self._session is not None or environment.sandbox is None:
            return
        session = Session(environment.sandbox)
        if (refused := environment.refusal_of(await session.start())) is not None:
            await to_the_end(session.aclose())
            raise SandboxError(f"no session can run in this sandbox: {refused}")
        self._session = session

    async def is_well(self, environment: Environment, call: Call) -> bool:
        return self.session is not None and await self.session.answers(call)

    def take_over(self, other: AnyRunner) -> None:
        assert isinstance(other, LivingInterpreter), "both are for the same kind of executor"
        self._session, other._session = other._session, None
        self._servers, other._servers = other._servers, self._servers

    async def close(self) -> str | None:
        session, self._session = self._session, None
        await self._servers.close()
        if session is None:
            return None
        if not session.busy:
            # the reader of its output ends a block that runs
            await session.aclose()
        return None if session.ending is None else session.ending.lost

    async def finish(self) -> Sequence[str]:
        if (session := self.session) is None or session.busy:
            return ()
        return await to_the_end(session.finish(_FINISH_TIME))

    async def renew(self, environment: Environment, *, in_use: bool) -> None:
        if (session := self._session) is None:
            return
        await self._servers.close()
        if in_use:
            await session.demand_restart()
            return
        try:
            await session.restart()
        except SandboxError:
            await to_the_end(self.close())

    def read(self, block: CodeBlock) -> tuple[str, str]:
        if (language := _LANGUAGES.get(block.language.lower())) is None:
            known = ", ".join(_LANGUAGES)
            raise BlockError(f"Unsupported language {block.language!r}; this executor runs {known}")
        require_size(block)
        return language, block.code

    def read_setup(self, setup: Setup) -> tuple[str, str]:
        return "setup", setup.code

    async def serve_processes(self, environment: Environment, user: str | None) -> ProcessServer:
        sandbox, session = environment.sandbox, self._session
        assert sandbox is not None, "it runs"
        assert session is not None, "it runs"
        if user is None or sandbox.is_own_user(user):
            return session.processes
        return await self._servers.get(user, sandbox)

    async def run(
        self,
        program: tuple[str, str],
        environment: Environment,
        call: Call,
        output: BoundedOutput,
        result: SessionResult,
        tools: HostTools | None = None,
    ) -> Exit:
        if (session := self._session) is None:
            return Exit(KILLED, lost=STOPPED)
        language, code = program
        ended, artifacts = await session.run(language, code, call, output.write, tools)
        for artifact in artifacts:
            add_artifact(result.artifacts, artifact)
        if isinstance(ended, Exit):
            return ended
        report, exit_code = read_report(ended.report), ended.exit_code
        if report is not None:
            _add_report(result, report)
        elif exit_code is None and ended.ran:
            await output.remark(_UNREADABLE)
        if exit_code is None:
            exit_code = 1 if report is None else report.exit_code
        return Exit(
            exit_code & 0xFF,
            ended.lost,
            sandbox_lives=True,
            ran=ended.ran,
            oom_kills=ended.oom_kills,
            fork_failures=ended.fork_failures or 0,
            processor_seconds=None if ended.microseconds is None else ended.microseconds / 1_000_000,
        )


def _add_report(result: SessionResult, report: Report) -> None:
    """Add what a block has reported to the result of its call. The names are in the order of their last binding."""
    bound = {name.name: name for name in report.names}
    result.names = [*(name for name in result.names if name.name not in bound), *bound.values()]
    result.omitted_names += report.omitted_names
    if result.answer is None:
        result.answer, result.answer_is_json = report.answer, report.answer_is_json
        result.answer_problem = report.answer_problem
    result.denied = report.denied


@dataclass(frozen=True, eq=False)
class _SessionCheckpoint(Checkpoint):
    """A fork of a session of the executor ``of``, in which nothing runs."""

    session: Session
    generation: Generation
    of: InterpreterCodeExecutor

    async def aclose(self) -> None:
        await self.session.aclose()


class InterpreterCodeExecutor(SandboxedCodeExecutor, SessionCodeExecutor):
    """Runs code in one living interpreter, which can be forked, in a sandbox that starts on first use."""

    _config: SessionConfig

    def __init__(
        self,
        config: SessionConfig,
        environment: Environment,
        interpreter: LivingInterpreter | None = None,
        turns: FairLock | None = None,
    ) -> None:
        self._interpreter = interpreter or LivingInterpreter(config)
        super().__init__(config, environment, self._interpreter, turns)
        self.workspace.use_session(self._running_session, self._remove_at_end)

    async def run_code_blocks(
        self,
        code_blocks: list[CodeBlock],
        cancellation_token: CancellationToken,
        *,
        user: object | None = None,
        tools: HostTools | None = None,
        emit: Emit | None = None,
        seconds: float | None = None,
    ) -> SessionResult:
        """Run the blocks as :meth:`SessionCodeExecutor.run_code_blocks` does.

        ``seconds`` are the time that each block may take, in place of the setting ``timeout``.
        """
        if seconds is not None and not 0 < seconds < math.inf:
            raise SettingError(f"timeout is {seconds}: it must be a finite number above 0")
        call = Call(cancellation_token, self if user is None else user, tools, self._environment, seconds)
        result = await self._run(code_blocks, call, emit)
        assert isinstance(result, SessionResult), "the interpreter makes it"
        if (omitted := len(result.names) - _MAX_NAMES) > 0:
            result.omitted_names += omitted
            result.names = result.names[omitted:]
        return result

    @property
    def workspace_path(self) -> str:
        """The absolute path of the workspace, as the sandbox sees it. Known while it runs."""
        sandbox, session = self._environment.sandbox, self._interpreter.session
        assert sandbox is not None, "it runs"
        assert session is not None, "it runs"
        return f"{sandbox.workspace}/{session.home}" if session.home else sandbox.workspace

    def add_setup(self, code: str) -> None:
        self._interpreter.add_setup(code)

    async def _running_session(self) -> Session:
        await self.life.start(for_use=True)
        assert self._interpreter.session is not None, "it has just started"
        return self._interpreter.session

    def _remove_at_end(self, path: str) -> None:
        # another directory may have been taken over since
        self._environment.directory.remove_at_end(path)

    async def fork(self, count: int = 1) -> Sequence[ForkedCodeExecutor]:
        async with self._turns:
            session = await self._set_up_session()
            async with self._environment.copying:
                sessions = await self._copies_of(session, count)
            return [ForkedCodeExecutor(session, self) for session in sessions]

    async def promote(self, fork: SessionCodeExecutor, *, user: object | None = None) -> None:
        if not isinstance(fork, ForkedCodeExecutor) or fork.of is not self:
            raise SettingError("only a fork of this executor can be promoted")
        async with self._turns, fork._turns:
            if (session := fork._interpreter.session) is None:
                raise SandboxError("the fork has ended")
            await self._continue_from(session, fork.life.generation, "a fork has taken its place", user)

    async def checkpoint(self) -> Checkpoint:
        async with self._turns:
            session = await self._set_up_session()
            async with self._environment.copying:
                [fork] = await self._copies_of(session, 1)
            return _SessionCheckpoint(fork, self.life.generation, self)

    async def rollback(self, to: Checkpoint, *, user: object | None = None) -> None:
        if not isinstance(to, _SessionCheckpoint) or to.of is not self:
            raise SettingError("an executor can go back only to a checkpoint of its own")
        # for a moment, old and new files exist, but never the files of several forks at once
        async with self._turns, self._environment.copying:
            if not to.session.alive:
                raise SandboxError(
                    "the checkpoint is gone: it was closed, or the session was restarted or lost"
                )
            # the checkpoint itself stays for another rollback
            [fork] = await self._copies_of(to.session, 1, replaced=self._interpreter.session)
            await self._continue_from(fork, to.generation, "it was set back to an earlier state", user)

    async def _copies_of(
        self, session: Session, count: int, *, replaced: Session | None = None
    ) -> Sequence[Session]:
        """Fork a session ``count`` times. The files of a session that will be ``replaced`` by the copy do not count.

        Raises:
            SettingError: If ``count`` is out of range.
            ForkError: If it cannot be forked, or copies of its workspace would exceed the quota.
        """
        most = MAX_FORKS - 1
        # True is an integer, too
        if type(count) is not int or not 1 <= count <= most:
            raise SettingError(f"`count` is {count!r}: a session can be forked 1 to {most} times")
        home = None if replaced is None else replaced.home
        exceeded = await self._environment.quota.exceeded_by_copies(session.home, count, replaced=home)
        if exceeded is not None:
            raise ForkError(
                f"this session cannot be forked now: copies of its workspace would exceed {exceeded}; stop forks, close "
                "checkpoints, or have the code remove files"
            )
        return await session.fork(count)

    async def _continue_from(
        self, fork: Session, generation: Generation, loss: str, user: object | None
    ) -> None:
        if (session := self._interpreter.session) is None:
            raise SandboxError("nothing can go on from there: the session has ended")
        await session.promote(fork)
        caller = self if user is None else user
        self.life.replace(loss, known_to=caller, by=generation.forked(session.interpreter))

    async def _set_up_session(self) -> Session:
        """The session, after its setup has run."""
        if not self.life.ready:
            await self.life.set_up()
        session = await self._running_session()
        # what ends with the sandbox does not remove it
        self._remove_at_end(session.forks_in)
        return session


class _ForkLife(Lifecycle):
    """From the fork of a session to its end. It cannot be started again."""

    async def prepare(self) -> None:
        pass

    async def start(self, *, for_use: bool = False) -> None:
        if not self.ready:
            reason = self.runner.interpreter_loss or "the fork or its session was stopped"
            raise SandboxError(f"this fork of a session has ended: {reason}")

    async def stop(self) -> None:
        async with self._turns:
            await to_the_end(self.runner.close())

    async def renew(self, *, in_use: bool = False) -> None:
        raise SettingError("a fork of a session cannot be restarted: stop it, and fork the session again")


class ForkedCodeExecutor(InterpreterCodeExecutor):
    """A fork of the session of the executor ``of``, as :meth:`SessionCodeExecutor.fork` makes them."""

    life_kind = _ForkLife

    def __init__(self, session: Session, of: InterpreterCodeExecutor) -> None:
        turns = FairLock()
        self._workspace = SandboxWorkspace(of._environment.location, turns)
        super().__init__(of._config, of._environment, of._interpreter.forked(session), turns)
        self.of = of
        self.life.generation = of.life.generation.forked(session.interpreter)

    @property
    def workspace(self) -> SandboxWorkspace:
        """The files of the fork. Their changes show once it is promoted."""
        return self._workspace

    def _to_config(self) -> Any:
        raise SettingError("a fork of a session cannot be dumped: dump the executor of the session")
