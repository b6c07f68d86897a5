"""How code runs in a living interpreter, wherever the sandbox is."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from pathlib import PurePosixPath

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from pydantic import Field, field_validator

from codeact_team.aio import to_the_end
from codeact_team.errors import SandboxError, SettingError
from codeact_team.execution import (
    Artifact,
    BoundName,
    ExecutionResult,
    HostTools,
    Outcome,
    SessionCodeExecutor,
    SessionResult,
)
from codeact_team.executors.base import (
    ExecutorConfig,
    SandboxedCodeExecutor,
    deadline_after,
    limit_behind,
    remark,
)
from codeact_team.executors.output import Output
from codeact_team.executors.supervision import Call
from codeact_team.executors.workspace import HostWorkspace
from codeact_team.sandboxes.base import Exit, Sandbox
from codeact_team.sessions.accounts import Account, Greeting, Report
from codeact_team.sessions.host import Session
from codeact_team.sessions.protocol import (
    MAX_ARTIFACT_BYTES,
    MAX_ARTIFACTS,
    MAX_CODE_BYTES,
    MAX_FILE_BYTES,
    MIB,
)

LANGUAGES = {"python": "python", "sh": "sh", "shell": "sh", "bash": "bash"}
"""What a session runs: by label, the interpreter or shell that runs it."""
MAX_NAMES = 40
"""How many names of one call are reported."""

_MODULE = re.compile(r"[^\W\d]\w*(?:\.[^\W\d]\w*)*")
_UNREADABLE = "The interpreter's account of the block could not be read."


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
                raise ValueError(f"{name}: {module} is not a name and a module, as in `np: numpy`")
        return modules


class InterpreterCodeExecutor(SandboxedCodeExecutor, SessionCodeExecutor):
    """Runs Python blocks in one interpreter, and shell blocks beside it, in a sandbox that starts on first use.

    Args:
        settings: Time limit, and what an interpreter starts with.
        workspace: The workspace's directory on the host.
    """

    _LOSS = (
        "The interpreter was lost: {}. Variables, imports, functions and running processes are gone. The next code runs "
        "in a fresh one."
    )

    _LOSS_BEFORE = (
        "The interpreter of the blocks before was lost: {}. Their variables, imports and functions are gone; this block "
        "runs in a fresh one."
    )

    def __init__(self, settings: SessionConfig, workspace: HostWorkspace) -> None:
        super().__init__(settings, workspace)
        imports = [f"import {module} as {name}" for name, module in settings.modules.items()]
        self._setup = [code for code in ("\n".join(imports), settings.setup) if code.strip()]
        self._setup_done = 0
        self._session: Session | None = None
        self._used = False
        """Whether the interpreter has anything to lose."""
        self._loss: str | None = None
        """Why an interpreter has been lost that the next block would have run in."""

    @property
    def supported_languages(self) -> Sequence[str]:
        return tuple(LANGUAGES)

    def execute_code_blocks_stream(
        self,
        code_blocks: list[CodeBlock],
        cancellation_token: CancellationToken,
        *,
        tools: HostTools | None = None,
    ) -> AsyncGenerator[str | ExecutionResult, None]:
        return self._execute(code_blocks, cancellation_token, tools)

    def add_setup(self, code: str) -> None:
        if code not in self._setup:
            self._setup.append(code)

    async def restart(self) -> None:
        """End everything that runs, and go on with a fresh interpreter in the same sandbox and workspace."""
        if (session := self._session) is None or not session.alive:
            return
        self._setup_done, self._used, self._loss = 0, False, None
        if self._turns.taken:
            # whoever runs a block, maybe the caller, learns of it when they read on
            await session.demand_restart()
            return
        async with self._turns:
            try:
                await session.restart()
            except SandboxError:
                # the next block starts another one
                await to_the_end(session.aclose())

    async def put_file(self, path: str, data: bytes) -> None:
        _check_path(path)
        if len(data) > MAX_FILE_BYTES:
            raise SettingError(
                f"{path}: {len(data)} bytes are too many; a file may have {MAX_FILE_BYTES // MIB} MiB"
            )
        async with self._turns:
            await (await self._running_session()).put_file(path, data)

    async def get_file(self, path: str) -> bytes:
        _check_path(path)
        async with self._turns:
            return await (await self._running_session()).get_file(path)

    async def list_files(self) -> dict[str, int]:
        async with self._turns:
            return await (await self._running_session()).list_files()

    def _is_ready(self) -> bool:
        return (
            self._session is not None
            and self._session.alive
            and self._session.untold_loss is None
            and self._setup_done == len(self._setup)
            and self._sandbox is not None
            and self._sandbox.running
        )

    def _new_result(self) -> SessionResult:
        return SessionResult(exit_code=0, output="")

    async def _running_session(self) -> Session:
        await self.start()
        assert self._session is not None
        return self._session

    async def _running_sandbox(self) -> Sandbox:
        session, sandbox = self._session, self._sandbox
        if session is not None and (sandbox is None or not sandbox.running or not session.alive):
            await to_the_end(session.aclose())
            self._note_loss(session)
        elif session is not None and session.untold_loss is not None:
            self._begin_anew(session.untold_loss)
            session.untold_loss = None
        sandbox = await super()._running_sandbox()
        if self._session is None:
            self._session, self._setup_done, self._used = await self._start_session(sandbox), 0, False
        return sandbox

    async def _start_session(self, sandbox: Sandbox) -> Session:
        session = Session(sandbox)
        greeting = await session.start()
        try:
            self._accept(greeting)
        except SandboxError:
            await to_the_end(session.aclose())
            raise
        return session

    def _accept(self, greeting: Greeting) -> None:
        """Refuse a supervisor that the code could tamper with, or warn of it where less than everything is required.

        Raises:
            SandboxError: If it is refused.
        """
        if greeting.unguarded is not None:
            raise SandboxError(f"no session is possible in this sandbox: {greeting.unguarded}")

    async def _stop_sandbox(self, sandbox: Sandbox) -> None:
        session, self._session, self._loss = self._session, None, None
        await sandbox.stop()
        if session is not None and not session.busy:
            await session.aclose()

    def _begin_anew(self, lost: str | None) -> None:
        """Take note that there is a fresh interpreter, and why: whoever runs the next block has to hear of it."""
        self._loss = lost if self._used else None
        self._setup_done, self._used = 0, False

    def _note_loss(self, session: Session) -> None:
        self._session = None
        if self._used and session.ending is not None:
            self._loss = session.ending.lost

    async def _prepare(self, call: Call) -> None:
        while self._setup_done < len(self._setup) and self._session is not None:
            code, output, result = self._setup[self._setup_done], Output(), self._new_result()
            run = self._session.run("python", code, stop=call.stop, deadline=deadline_after(self._timeout))
            async with aclosing(run) as items:
                async for item in items:
                    if isinstance(item, bytes):
                        output.add(item)
                    elif isinstance(item, Account | Exit):
                        self._settle(self._session, item, call, output, result)
            if call.stop.done():
                return
            if result.exit_code != 0:
                raise SettingError(f"the setup of the interpreter failed:\n{code}\n{output.text()}")
            self._setup_done += 1

    async def _run_block(
        self, block: CodeBlock, call: Call, output: Output, result: ExecutionResult
    ) -> AsyncGenerator[str, None]:
        assert isinstance(result, SessionResult)
        # a lone surrogate has no bytes
        data = block.code.encode(errors="replace")
        if (refusal := _refusal(block.language, len(data))) is not None:
            result.exit_code, result.outcome = 1, Outcome.NOT_RUN
            yield output.add_text(refusal)
            return
        language, code = LANGUAGES[block.language.lower()], data.decode()
        for is_last in (False, True):
            session = self._session
            if session is None or call.stop.done():
                yield output.add_text(self._conclude(None, self._sandbox, call, output, result))
                return
            if self._loss is not None:
                yield output.add_text(self._tell_loss(output, result))
            ending: Account | Exit | None = None
            run = session.run(
                language, code, stop=call.stop, deadline=deadline_after(self._timeout), tools=call.tools
            )
            async with aclosing(run) as items:
                async for item in items:
                    if isinstance(item, bytes):
                        yield output.add(item)
                    elif isinstance(item, Artifact):
                        _add_artifact(result, item)
                    else:
                        ending = item
            assert ending is not None, "a block in a session ends with how it ended"
            stopped = session.timed_out or call.stop.done()
            if is_last or stopped or not isinstance(ending, Account) or ending.ran or ending.lost is None:
                yield output.add_text(self._settle(session, ending, call, output, result))
                return
            # the interpreter had ended before
            self._begin_anew(ending.lost)
            await self._get_ready(call)

    def _settle(
        self, session: Session, ending: Account | Exit, call: Call, output: Output, result: SessionResult
    ) -> str:
        """Note in ``result`` how a block ended, and return what to add to its output."""
        call.timed_out = session.timed_out
        remarks: list[str] = []
        limit: str | None = None
        if isinstance(ending, Account):
            if (report := ending.read_report()) is not None:
                _take_over(report, result)
            elif ending.exit_code is None:
                remarks.append(_UNREADABLE)
            ending = Exit(
                _exit_code(ending, report),
                lost=ending.lost,
                oom_kills=ending.oom_kills,
                fork_failures=ending.fork_failures or 0,
            )
            if ending.lost is not None and self._sandbox is not None:
                limit = limit_behind(ending, self._sandbox, output)
        self._used = ending.lost is None
        if ending.lost is not None:
            result.state_lost, self._setup_done = True, 0
        conclusion = self._conclude(ending, self._sandbox, call, output, result)
        if limit is not None and result.outcome is Outcome.LOST:
            result.limit = limit
            conclusion = f"{conclusion}\n{limit}"
        return "\n".join(filter(None, [*remarks, conclusion]))

    def _tell_loss(self, output: Output, result: SessionResult) -> str:
        assert self._loss is not None
        text, self._loss, result.state_lost = self._LOSS_BEFORE.format(self._loss), None, True
        return remark(output, f"{text}\n")


def _refusal(language: str, size: int) -> str | None:
    """Why a block of so many bytes is not run at all."""
    if language.lower() not in LANGUAGES:
        return f"Unsupported language {language!r}; this executor runs {', '.join(LANGUAGES)}"
    if size > MAX_CODE_BYTES:
        return f"The block has {size} bytes; it may have {MAX_CODE_BYTES // MIB} MiB. Put data into a file."
    return None


def _exit_code(account: Account, report: Report | None) -> int:
    if account.exit_code is not None:
        return account.exit_code & 0xFF
    return 1 if report is None else report.exit_code


def _take_over(report: Report, result: SessionResult) -> None:
    """Add to a call's result what the interpreter tells of one of its blocks."""
    bound = {name.name: name for name in result.names}
    for name in report.names:
        # where it was bound last counts
        bound.pop(name.name, None)
        bound[name.name] = BoundName(name.name, name.type, name.size, name.preview)
    result.names = list(bound.values())[-MAX_NAMES:]
    result.omitted_names += report.omitted_names + len(bound) - len(result.names)
    if result.answer is None:
        result.answer = report.answer
    result.denied = report.denied


def _add_artifact(result: SessionResult, artifact: Artifact) -> None:
    size = sum(len(one.data) for one in result.artifacts) + len(artifact.data)
    if len(result.artifacts) < MAX_ARTIFACTS and size <= MAX_ARTIFACT_BYTES:
        result.artifacts.append(artifact)


def _check_path(path: str) -> None:
    parts = PurePosixPath(path)
    if not parts.parts or parts.is_absolute() or ".." in parts.parts or "\0" in path:
        raise SettingError(f"{path!r} is not the path of a file below the workspace")
