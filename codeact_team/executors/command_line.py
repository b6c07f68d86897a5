"""How code runs in a fresh process per block, wherever the sandbox is."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from importlib import resources
from pathlib import Path

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from pydantic import BaseModel, ConfigDict, Field, field_validator

from codeact_team import scope
from codeact_team.aio import Turns, to_the_end
from codeact_team.errors import SandboxError, SettingError
from codeact_team.execution import ExecutionResult, Outcome, StreamingCodeExecutor
from codeact_team.executors.languages import DEFAULT_LANGUAGES, BlockError, file_of, parse_command
from codeact_team.executors.output import Output
from codeact_team.executors.supervision import Call, communicate, end, first
from codeact_team.executors.workspace import HostWorkspace
from codeact_team.sandboxes.base import Exit, Process, Sandbox
from codeact_team.sandboxes.limits import diagnose

logger = logging.getLogger(__name__)

TIMEOUT_EXIT_CODE = 124
"""What the ``timeout`` command exits with, and AutoGen's executors report."""
CANCELLED_EXIT_CODE = 1
LOST_EXIT_CODE = 128 + 9
DELETE_TIMEOUT = 2.0
"""Seconds to delete the blocks' files; what earlier blocks have left running may hinder it."""

_RUN_BLOCK = (resources.files(__name__.rpartition(".")[0]) / "run_block.sh").read_text()


class CommandLineConfig(BaseModel):
    """Settings that every command-line executor has."""

    model_config = ConfigDict(extra="forbid")

    timeout: int = 60
    """Seconds that one code block may take."""
    work_dir: str | None = None
    """Directory of the host that is the code's workspace; made if missing. Default: a temporary one."""
    delete_tmp_files: bool = False
    """Whether the files that hold the code blocks are deleted after they ran."""
    languages: dict[str, str] = Field(default_factory=dict)
    """More languages: label to command, which gets the block's file as its last argument."""

    @field_validator("timeout")
    @classmethod
    def _at_least_a_second(cls, timeout: int) -> int:
        if timeout < 1:
            raise ValueError("Timeout must be greater than or equal to 1.")
        return timeout

    @field_validator("languages")
    @classmethod
    def _commands(cls, languages: dict[str, str]) -> dict[str, str]:
        for label, command in languages.items():
            parse_command(label, command)
        return languages


class CommandLineCodeExecutor(StreamingCodeExecutor):
    """Runs each code block as a process of its own in a sandbox that starts on first use.

    Calls that come at the same time queue: processes of one sandbox cannot be told apart once they have forked.

    Args:
        settings: Time limit, languages, and what becomes of the blocks' files.
        workspace: The workspace's directory on the host.
    """

    def __init__(self, settings: CommandLineConfig, workspace: HostWorkspace) -> None:
        self._timeout = settings.timeout
        self._delete_tmp_files = settings.delete_tmp_files
        self._commands = {
            label.lower(): parse_command(label, command)
            for label, command in {**DEFAULT_LANGUAGES, **settings.languages}.items()
        }
        self._workspace = workspace
        self._sandbox: Sandbox | None = None
        self._prepared = False
        self._turns = Turns()
        self._starting = Turns()
        scope.register(self)

    @abstractmethod
    async def _make_sandbox(self) -> Sandbox:
        """A new sandbox, not started."""

    @property
    def work_dir(self) -> Path:
        """The workspace's directory on the host.

        Raises:
            RuntimeError: If it is a temporary one that does not exist yet, or the workspace is in a container only.
        """
        return self._workspace.path

    @property
    def timeout(self) -> int:
        """Seconds that one block may take."""
        return self._timeout

    @property
    def supported_languages(self) -> Sequence[str]:
        return tuple(self._commands)

    async def start(self) -> None:
        """Start the sandbox now rather than on first use. Idempotent.

        Raises:
            SandboxError: If it cannot start.
        """
        async with self._starting:
            is_new = self._sandbox is None
            try:
                await self._running_sandbox()
            except BaseException:
                if is_new:
                    # nothing has run yet, so a temporary workspace holds nothing
                    self._sandbox = None
                    await to_the_end(self._workspace.remove())
                raise

    async def stop(self) -> None:
        """Stop the sandbox with all that runs in it. Idempotent; a later call starts a new one."""
        async with self._starting:
            sandbox, self._sandbox = self._sandbox, None
            if sandbox is not None:
                await to_the_end(sandbox.stop())
            await self._workspace.remove()

    async def restart(self) -> None:
        """Stop everything that runs and start again with the same workspace."""
        async with self._starting:
            if self._sandbox is not None:
                await to_the_end(self._sandbox.stop())
                await self._running_sandbox()

    async def execute_code_blocks_stream(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> AsyncGenerator[str | ExecutionResult, None]:
        if not code_blocks:
            raise SettingError("No code blocks to execute.")
        async with self._turns:
            call = Call(cancellation_token)
            try:
                await first(self.start(), call.stop, None)
                if not self._prepared:
                    await self._prepare(call)
                async with aclosing(self._run_all(code_blocks, call)) as items:
                    async for item in items:
                        yield item
            finally:
                call.stop.cancel()
                if self._delete_tmp_files:
                    await to_the_end(self._delete(call.files))

    async def _running_sandbox(self) -> Sandbox:
        if self._sandbox is None:
            self._sandbox = await self._make_sandbox()
        if not self._sandbox.running:
            self._prepared = False
            await self._sandbox.start()
        return self._sandbox

    async def _prepare(self, call: Call) -> None:
        """Put into a sandbox that has just started what all blocks need."""
        self._prepared = True

    async def _delete(self, files: list[str]) -> None:
        """Delete blocks' files, from inside: the host does not touch what hostile code may have replaced."""
        sandbox = self._sandbox
        if not files or sandbox is None or not sandbox.running:
            return
        try:
            process = await _spawn(sandbox, ["rm", "-f", "--", *files])
        except SandboxError as error:
            logger.warning("files of code blocks are left: %s", error)
            return
        deadline = asyncio.get_running_loop().time() + DELETE_TIMEOUT
        while await first(process.read(), None, deadline):
            pass
        await process.aclose()

    def _host_path(self, file: str) -> str | None:
        """The host's name for a file of the workspace, where the workspace is a directory of the host."""
        return None

    async def _run_all(
        self, blocks: list[CodeBlock], call: Call
    ) -> AsyncGenerator[str | ExecutionResult, None]:
        result = ExecutionResult(exit_code=0, output="")
        output, began = Output(), time.monotonic()
        for number, block in enumerate(blocks, 1):
            async with aclosing(self._run_block(block, call, output, result)) as chunks:
                async for chunk in chunks:
                    if chunk:
                        yield chunk
            if result.exit_code != 0 or result.outcome is not Outcome.COMPLETED:
                if left := len(blocks) - number:
                    yield output.add_text(
                        _remark(output, f"[{left} more code block(s) not run: block {number} failed]")
                    )
                break
        if rest := output.finish():
            yield rest
        result.output = output.text()
        result.omitted_bytes = output.omitted_bytes
        result.seconds = time.monotonic() - began
        yield result

    async def _run_block(
        self, block: CodeBlock, call: Call, output: Output, result: ExecutionResult
    ) -> AsyncGenerator[str, None]:
        """Run one block, yield its output, and note in ``result`` how it ended."""
        try:
            command = self._command_for(block)
            file = file_of(block)
        except BlockError as error:
            result.exit_code, result.outcome = 1, Outcome.NOT_RUN
            yield output.add_text(str(error))
            return
        result.code_file = result.code_file or self._host_path(file)
        call.files.append(file)
        process: Process | None = None
        ending: Exit | None = None
        sandbox = self._sandbox
        try:
            if sandbox is not None and not call.stop.done():
                call.deadline = asyncio.get_running_loop().time() + self._timeout
                process = await _spawn(sandbox, ["sh", "-c", _RUN_BLOCK, "run_block", file, *command])
                async with aclosing(communicate(process, block.code, sandbox, call)) as chunks:
                    async for chunk in chunks:
                        yield output.add(chunk)
                ending = await process.wait()
        except SandboxError as error:
            if sandbox is None or sandbox.running:
                raise
            ending = Exit(LOST_EXIT_CODE, lost=str(error))
        except BaseException:
            if process is not None and sandbox is not None:
                await to_the_end(end(process, sandbox))
            raise
        finally:
            if process is not None:
                await process.aclose()
        yield output.add_text(self._conclude(ending, sandbox, call, output, result))

    def _command_for(self, block: CodeBlock) -> list[str]:
        if (command := self._commands.get(block.language.lower())) is None:
            known = ", ".join(self._commands)
            raise BlockError(f"Unsupported language {block.language!r}; this executor runs {known}")
        return command

    def _conclude(
        self,
        ending: Exit | None,
        sandbox: Sandbox | None,
        call: Call,
        output: Output,
        result: ExecutionResult,
    ) -> str:
        """Note in ``result`` how a block ended, ``None`` if it never began; return what to add to its output."""
        if ending is None and not call.stop.done():
            ending = Exit(LOST_EXIT_CODE, lost="the executor was stopped")
        remarks: list[str] = []
        if call.stop.done():
            result.exit_code, result.outcome = CANCELLED_EXIT_CODE, Outcome.CANCELLED
            remarks.append("Code execution was cancelled.")
        elif call.timed_out:
            result.exit_code, result.outcome = TIMEOUT_EXIT_CODE, Outcome.TIMED_OUT
            result.limit = f"time (timeout: {self._timeout})"
            remarks.append(f"Timeout: stopped after {self._timeout} s, the limit that `timeout` sets.")
        elif ending is not None and ending.lost is not None:
            result.exit_code, result.outcome = ending.code, Outcome.LOST
        elif ending is not None and sandbox is not None:
            result.exit_code = ending.code
            result.limit = diagnose(
                sandbox.limits,
                exit_code=ending.code,
                output=output.end(),
                oom_kills=ending.oom_kills,
                fork_failures=ending.fork_failures,
            )
            if result.limit is not None:
                remarks.append(result.limit)
        if (lost := _why_lost(ending, sandbox)) is not None:
            remarks.append(
                f"The sandbox was lost: {lost}. Running processes are gone; the next code runs in a fresh sandbox."
            )
        return _remark(output, "\n".join(remarks)) if remarks else ""


def _why_lost(ending: Exit | None, sandbox: Sandbox | None) -> str | None:
    if ending is None or ending.lost is not None:
        return None if ending is None else ending.lost
    return None if sandbox is None or sandbox.running else "it could not be cleared of all that ran in it"


async def _spawn(sandbox: Sandbox, argv: Sequence[str]) -> Process:
    try:
        return await sandbox.spawn(argv)
    except SandboxError:
        if not sandbox.running:
            raise
        # what an earlier block has left behind may hold all the processes there may be
        await sandbox.kill()
        return await sandbox.spawn(argv)


def _remark(output: Output, text: str) -> str:
    """A remark of ours on a line of its own."""
    end = output.end(1)
    return f"\n{text}" if end and end != "\n" else text
