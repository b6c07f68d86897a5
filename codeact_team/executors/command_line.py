"""How code runs in a fresh process per block, wherever the sandbox is."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from importlib import resources
from typing import Any, TypeVar

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from pydantic import BaseModel, ConfigDict, Field, field_validator

from codeact_team import scope
from codeact_team.aio import Turns, to_the_end
from codeact_team.errors import SandboxError, SettingError
from codeact_team.execution import ExecutionResult, Outcome, StreamingCodeExecutor
from codeact_team.executors.languages import DEFAULT_LANGUAGES, BlockError, file_of, parse_command
from codeact_team.executors.output import Output
from codeact_team.sandboxes.base import Exit, Process, Sandbox
from codeact_team.sandboxes.limits import diagnose

logger = logging.getLogger(__name__)

T = TypeVar("T")

TIMEOUT_EXIT_CODE = 124
"""What the ``timeout`` command exits with, and AutoGen's executors report."""
CANCELLED_EXIT_CODE = 1
LOST_EXIT_CODE = 128 + 9

INTERRUPT_GRACE = 0.5
"""Seconds between SIGINT, which lets Python say where it was, and SIGKILL."""
KILL_GRACE = 1.0
"""Seconds after SIGKILL until the sandbox itself is stopped. Together under the 2 s that a stop may take."""

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
    """

    def __init__(self, settings: CommandLineConfig) -> None:
        self._timeout = settings.timeout
        self._delete_tmp_files = settings.delete_tmp_files
        self._commands = {
            label.lower(): parse_command(label, command)
            for label, command in {**DEFAULT_LANGUAGES, **settings.languages}.items()
        }
        self._sandbox: Sandbox | None = None
        self._turns = Turns()
        self._starting = Turns()
        scope.register(self)

    @abstractmethod
    async def _make_sandbox(self) -> Sandbox:
        """A new sandbox, not started."""

    @property
    def timeout(self) -> int:
        """Seconds that one block may take."""
        return self._timeout

    @property
    def supported_languages(self) -> Sequence[str]:
        return tuple(self._commands)

    @property
    def sandboxed(self) -> bool:
        return True

    async def start(self) -> None:
        """Start the sandbox now rather than on first use. Idempotent.

        Raises:
            SandboxError: If it cannot start.
        """
        async with self._starting:
            await self._running_sandbox()

    async def stop(self) -> None:
        """Stop the sandbox with all that runs in it. Idempotent; a later call starts a new one."""
        async with self._starting:
            sandbox, self._sandbox = self._sandbox, None
            if sandbox is not None:
                await to_the_end(sandbox.stop())

    async def restart(self) -> None:
        """Stop everything that runs and start again with the same workspace."""
        async with self._starting:
            if self._sandbox is not None:
                await to_the_end(self._sandbox.stop())
                await self._sandbox.start()

    async def execute_code_blocks_stream(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> AsyncGenerator[str | ExecutionResult, None]:
        if not code_blocks:
            raise SettingError("No code blocks to execute.")
        async with self._turns:
            run = _Run(cancellation_token)
            try:
                await _first(self.start(), run.stop, None)
                async with aclosing(self._run_all(code_blocks, run)) as items:
                    async for item in items:
                        yield item
            finally:
                run.stop.cancel()
                if self._delete_tmp_files:
                    await to_the_end(self._delete(run.files))

    async def _running_sandbox(self) -> Sandbox:
        if self._sandbox is None:
            self._sandbox = await self._make_sandbox()
        await self._sandbox.start()
        return self._sandbox

    async def _delete(self, files: list[str]) -> None:
        """Delete blocks' files, from inside: the host does not touch what hostile code may have replaced."""
        if files and self._sandbox is not None and self._sandbox.running:
            process = await self._sandbox.spawn(["rm", "-f", "--", *files])
            while await process.read():
                pass
            await process.aclose()

    def _host_path(self, file: str) -> str | None:
        """The host's name for a file of the workspace, where the workspace is a directory of the host."""
        return None

    async def _run_all(
        self, blocks: list[CodeBlock], run: _Run
    ) -> AsyncGenerator[str | ExecutionResult, None]:
        result = ExecutionResult(exit_code=0, output="")
        output, began = Output(), time.monotonic()
        for number, block in enumerate(blocks, 1):
            async with aclosing(self._run_block(block, run, output, result)) as chunks:
                async for chunk in chunks:
                    yield chunk
            if result.exit_code != 0 or result.outcome is not Outcome.COMPLETED:
                if left := len(blocks) - number:
                    yield output.add_text(
                        _remark(output, f"[{left} more code block(s) not run: block {number} failed]")
                    )
                break
        result.output = output.text()
        result.omitted_bytes = output.omitted_bytes
        result.seconds = time.monotonic() - began
        yield result

    async def _run_block(
        self, block: CodeBlock, run: _Run, output: Output, result: ExecutionResult
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
        run.files.append(file)
        process: Process | None = None
        exit, sandbox = Exit(LOST_EXIT_CODE, lost="the executor was stopped"), self._sandbox
        try:
            if sandbox is not None and not run.stop.done():
                run.deadline = asyncio.get_running_loop().time() + self._timeout
                process = await sandbox.spawn(["sh", "-c", _RUN_BLOCK, "run_block", file, *command])
                async with aclosing(_communicate(process, block.code, sandbox, run)) as chunks:
                    async for chunk in chunks:
                        yield output.add(chunk)
                exit = await process.wait()
        except SandboxError as error:
            if sandbox is None or sandbox.running:
                raise
            exit = Exit(LOST_EXIT_CODE, lost=str(error))
        except BaseException:
            if process is not None and sandbox is not None:
                await to_the_end(_end(process, sandbox))
            raise
        finally:
            if process is not None:
                await process.aclose()
        yield output.add_text(self._conclude(exit, sandbox, run, output, result))

    def _command_for(self, block: CodeBlock) -> list[str]:
        if (command := self._commands.get(block.language.lower())) is None:
            known = ", ".join(self._commands)
            raise BlockError(f"Unsupported language {block.language!r}; this executor runs {known}")
        return command

    def _conclude(
        self, exit: Exit, sandbox: Sandbox | None, run: _Run, output: Output, result: ExecutionResult
    ) -> str:
        """Note in ``result`` how a block ended; return what to add to its output."""
        result.exit_code = exit.code
        remarks: list[str] = []
        if run.stop.done():
            result.exit_code, result.outcome = CANCELLED_EXIT_CODE, Outcome.CANCELLED
            remarks.append("Code execution was cancelled.")
        elif run.timed_out:
            result.exit_code, result.outcome = TIMEOUT_EXIT_CODE, Outcome.TIMED_OUT
            result.limit = f"time (timeout: {self._timeout})"
            remarks.append(f"Timeout: stopped after {self._timeout} s, the limit that `timeout` sets.")
        elif exit.lost is not None:
            result.outcome = Outcome.LOST
            remarks.append(
                f"The sandbox was lost: {exit.lost}. Running processes are gone; the next code runs in a fresh sandbox."
            )
        elif sandbox is not None:
            result.limit = diagnose(
                sandbox.limits,
                exit_code=exit.code,
                output=output.end(),
                oom_kills=exit.oom_kills,
                fork_failures=exit.fork_failures,
            )
            if result.limit is not None:
                remarks.append(result.limit)
        return "".join(_remark(output, remark) for remark in remarks)


class _Run:
    """One call: its cancellation, the current block's deadline, and the files it has written."""

    def __init__(self, cancellation_token: CancellationToken) -> None:
        self.stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.deadline = 0.0
        self.timed_out = False
        self.files: list[str] = []
        cancellation_token.link_future(self.stop)


async def _communicate(
    process: Process, code: str, sandbox: Sandbox, run: _Run
) -> AsyncGenerator[bytes, None]:
    """The output of a block until it ends, or until its time is over or the caller stops it."""
    await _first(process.write(code.encode(errors="replace")), run.stop, run.deadline)
    await process.close_stdin()
    while True:
        chunk = await _first(process.read(), run.stop, run.deadline)
        if chunk is None:
            run.timed_out = not run.stop.done()
            break
        if not chunk:
            return
        yield chunk
    async with aclosing(_terminate(process, sandbox)) as chunks:
        async for chunk in chunks:
            yield chunk


async def _terminate(process: Process, sandbox: Sandbox) -> AsyncGenerator[bytes, None]:
    """Stop everything inside: by SIGINT, then SIGKILL, then by stopping the sandbox. Yields the last words."""
    loop = asyncio.get_running_loop()
    for signal, grace in ((sandbox.interrupt, INTERRUPT_GRACE), (sandbox.kill, KILL_GRACE)):
        await signal()
        deadline = loop.time() + grace
        while chunk := await _first(process.read(), None, deadline):
            yield chunk
        if chunk is not None:
            # the program has ended; what it forked may not have
            await sandbox.kill()
            return
    logger.warning("a block did not end by SIGKILL: stopping its sandbox")
    await to_the_end(sandbox.stop())


async def _end(process: Process, sandbox: Sandbox) -> None:
    """Stop everything inside, for a caller who wants no more output."""
    async with aclosing(_terminate(process, sandbox)) as chunks:
        async for _ in chunks:
            pass


async def _first(
    work: Coroutine[Any, Any, T], stop: asyncio.Future[None] | None, deadline: float | None
) -> T | None:
    """The result of ``work``; ``None`` if ``stop`` or the deadline, in the loop's seconds, comes first."""
    task = asyncio.ensure_future(work)
    left = None if deadline is None else deadline - asyncio.get_running_loop().time()
    try:
        await asyncio.wait(
            {task} if stop is None else {task, stop}, timeout=left, return_when=asyncio.FIRST_COMPLETED
        )
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    return None if task.cancelled() else task.result()


def _remark(output: Output, text: str) -> str:
    """A remark of ours on a line of its own."""
    end = output.end(1)
    return f"\n{text}" if end and end != "\n" else text
