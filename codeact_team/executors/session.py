"""How code runs in a living interpreter, wherever the sandbox is."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from pydantic import Field, field_validator

from codeact_team.aio import to_the_end
from codeact_team.errors import SandboxError, SettingError
from codeact_team.execution import Artifact, BoundName, ExecutionResult, HostTools, SessionResult
from codeact_team.executor_interface import Emit, SessionCodeExecutor
from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.executors.block_results import LOST_EXIT_CODE
from codeact_team.executors.bounded_output import BoundedOutput
from codeact_team.executors.code_runner import AnyRunner, BlockEnd, BlockError, CodeRunner, Setup
from codeact_team.executors.place import Place
from codeact_team.executors.settings import ExecutorConfig
from codeact_team.executors.stopping import Call
from codeact_team.sandboxes.base import STOPPED, Exit
from codeact_team.sessions.host import Session, add_artifact
from codeact_team.sessions.protocol import KEPT_APART, MAX_CODE_BYTES, MAX_FILE_BYTES, MIB
from codeact_team.sessions.replies import Report

logger = logging.getLogger(__name__)

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
                raise ValueError(f"{name!r}: {module!r} is not a name and a module, as in `np: numpy`")
        return modules


@dataclass(slots=True)
class _InterpreterEnd(BlockEnd):
    report: Report | None = None
    artifacts: Sequence[Artifact] = ()


class LivingInterpreter(CodeRunner[tuple[str, str], _InterpreterEnd]):
    """Runs Python blocks in one interpreter, and shell blocks beside it."""

    lives_on = True
    loss = (
        "The interpreter was lost: {}. Variables, imports, functions and running processes are gone. The next code runs "
        "in a fresh one."
    )
    loss_before = (
        "The interpreter of the blocks before was lost: {}. Their variables, imports and functions are gone; this block "
        "runs in a fresh one."
    )

    def __init__(self, config: SessionConfig) -> None:
        super().__init__(LANGUAGES)
        self._session: Session | None = None
        imports = "\n".join(f"import {module} as {name}" for name, module in config.modules.items())
        self._add_setup(imports, may_read_data=False)
        self._add_setup(config.setup)

    def add_setup(self, code: str) -> None:
        """Run ``code`` in each fresh interpreter; the same code is added once."""
        self._add_setup(code)

    def _add_setup(self, code: str, *, may_read_data: bool = True) -> None:
        failure = f"the setup of the interpreter failed:\n{code}\n"
        setup = Setup(CodeBlock(code, "python"), failure, may_read_data=may_read_data)
        if code.strip() and setup not in self.setup:
            self.setup.append(setup)

    @property
    def session(self) -> Session | None:
        """What can be asked, if anything can."""
        return self._session if self._session is not None and self._session.alive else None

    @property
    def interpreter(self) -> int | None:
        return None if self.session is None else self.session.interpreter

    @property
    def interpreter_loss(self) -> str:
        return "" if self._session is None else self._session.interpreter_loss

    async def open(self, place: Place) -> None:
        if self._session is not None or place.sandbox is None:
            return
        session = Session(place.sandbox)
        if (unguarded := await session.start()) is not None:
            # code could tamper with what it says of others
            if place.must_guard:
                await to_the_end(session.aclose())
                raise SandboxError(f"no session is possible in this sandbox: {unguarded}")
            logger.warning("%s", unguarded)
        self._session = session

    async def is_well(self, place: Place, call: Call) -> bool:
        return self.session is not None and await self.session.answers(call)

    def take_over(self, other: AnyRunner) -> None:
        assert isinstance(other, LivingInterpreter), "both are for the same kind of executor"
        self._session, other._session = other._session, None

    async def close(self) -> str | None:
        session, self._session = self._session, None
        if session is None:
            return None
        if not session.busy:
            # else whoever reads what comes of the block ends it
            await session.aclose()
        return None if session.ending is None else session.ending.lost

    async def renew(self, place: Place, *, in_use: bool) -> None:
        if (session := self._session) is None:
            return
        if in_use:
            await session.demand_restart()
            return
        try:
            await session.restart()
        except SandboxError:
            await to_the_end(self.close())

    def read(self, block: CodeBlock) -> tuple[str, str]:
        if (language := LANGUAGES.get(block.language.lower())) is None:
            known = ", ".join(LANGUAGES)
            raise BlockError(f"Unsupported language {block.language!r}; this executor runs {known}")
        # a character has four bytes at most
        if len(block.code) * 4 > MAX_CODE_BYTES < (size := len(block.code.encode(errors="replace"))):
            limit = MAX_CODE_BYTES // MIB
            raise BlockError(f"The block has {size} bytes; it may have {limit} MiB. Put data into a file.")
        return language, block.code

    def read_setup(self, setup: Setup) -> tuple[str, str]:
        return "setup", setup.block.code

    async def run(
        self,
        program: tuple[str, str],
        place: Place,
        call: Call,
        output: BoundedOutput,
        tools: HostTools | None = None,
    ) -> _InterpreterEnd:
        if (session := self._session) is None:
            return _InterpreterEnd(Exit(LOST_EXIT_CODE, lost=STOPPED))
        language, code = program
        ended, artifacts = await session.run(language, code, call, output.write, tools)
        if isinstance(ended, Exit):
            return _InterpreterEnd(ended, artifacts=artifacts)
        report, exit_code = ended.read_report(), ended.exit_code
        if exit_code is None:
            if report is None and ended.ran:
                await output.remark(_UNREADABLE)
            exit_code = 1 if report is None else report.exit_code
        return _InterpreterEnd(
            Exit(
                exit_code & 0xFF,
                ended.lost,
                ended.oom_kills,
                ended.fork_failures or 0,
                ended.processor_seconds,
            ),
            ran=ended.ran,
            sandbox_lives=True,
            report=report,
            artifacts=artifacts,
        )

    def result(self, ends: Sequence[_InterpreterEnd], *, state_lost: bool) -> SessionResult:
        result = SessionResult(0, "", state_lost=state_lost)
        for end in ends:
            for artifact in end.artifacts:
                add_artifact(result.artifacts, artifact)
            if (report := end.report) is not None:
                if report.names:
                    result.names = _later(result.names, report)
                result.omitted_names += report.omitted_names
                if result.answer is None:
                    result.answer, result.answer_is_json = report.answer, report.answer_is_json
                    result.answer_problem = report.answer_problem
                result.denied = report.denied
        if len(result.names) > MAX_NAMES:
            result.omitted_names += len(result.names) - MAX_NAMES
            result.names = result.names[-MAX_NAMES:]
        return result


class InterpreterCodeExecutor(SandboxedCodeExecutor, SessionCodeExecutor):
    """Runs code in one living interpreter, in a sandbox that starts on first use."""

    _config: SessionConfig

    def __init__(
        self, config: SessionConfig, place: Place, interpreter: LivingInterpreter | None = None
    ) -> None:
        self._interpreter = interpreter or LivingInterpreter(config)
        super().__init__(config, place, self._interpreter)

    async def run_code_blocks(
        self,
        code_blocks: list[CodeBlock],
        cancellation_token: CancellationToken,
        *,
        user: object | None = None,
        tools: HostTools | None = None,
        emit: Emit | None = None,
    ) -> ExecutionResult:
        call = Call(cancellation_token, self if user is None else user, tools, self._place)
        return await self._run(code_blocks, call, emit)

    def add_setup(self, code: str) -> None:
        self._interpreter.add_setup(code)

    async def put_file(self, path: str, data: bytes | str, *, temporary: bool = False) -> str:
        _check_path(path)
        if temporary and "/" in path:
            raise SettingError(f"{path}: a temporary file has a name and no directory")
        if isinstance(data, str):
            data = data.encode()
        if len(data) > MAX_FILE_BYTES:
            raise SettingError(
                f"{path}: {len(data)} bytes are too many; a file may have {MAX_FILE_BYTES // MIB} MiB"
            )
        async with self._turns:
            session = await self._running_session()
            if temporary:
                path = f"{KEPT_APART}/{path}"
                self._place.workspace.remove_at_end(path)
            await session.put_file(path, data)
        return path

    async def get_file(self, path: str) -> bytes:
        _check_path(path)
        async with self._turns:
            return await (await self._running_session()).get_file(path)

    async def list_files(self) -> dict[str, int]:
        async with self._turns:
            return await (await self._running_session()).list_files()

    async def _running_session(self) -> Session:
        await self._life.start(for_use=True)
        assert self._interpreter.session is not None, "it has just started"
        return self._interpreter.session


def _later(names: list[BoundName], report: Report) -> list[BoundName]:
    """The names that were bound, in the order in which they were bound last."""
    bound = {name.name: name for name in names}
    for name in report.names:
        bound.pop(name.name, None)
        bound[name.name] = BoundName(name.name, name.type, name.size, name.preview)
    return list(bound.values())


def _check_path(path: str) -> None:
    parts = PurePosixPath(path)
    if not parts.parts or parts.is_absolute() or ".." in parts.parts or "\0" in path:
        raise SettingError(f"{path!r} is not the path of a file below the workspace")
