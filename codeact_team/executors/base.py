"""What all executors have in common: a sandbox that starts on first use, and one call at a time in it."""

from __future__ import annotations

import asyncio
import time
from abc import abstractmethod
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from pydantic import BaseModel, ConfigDict, field_validator

from codeact_team import scope
from codeact_team.aio import Turns, to_the_end
from codeact_team.errors import SettingError
from codeact_team.execution import ExecutionResult, HostTools, Outcome, StreamingCodeExecutor
from codeact_team.executors.output import Output
from codeact_team.executors.supervision import Call, first
from codeact_team.executors.workspace import HostWorkspace
from codeact_team.sandboxes.base import Exit, Sandbox
from codeact_team.sandboxes.limits import diagnose

TIMEOUT_EXIT_CODE = 124
"""What the ``timeout`` command exits with, and AutoGen's executors report."""
CANCELLED_EXIT_CODE = 1
LOST_EXIT_CODE = 128 + 9


class ExecutorConfig(BaseModel):
    """Settings that every executor has."""

    model_config = ConfigDict(extra="forbid")

    timeout: int = 60
    """Seconds that one code block may take."""
    work_dir: str | None = None
    """Directory of the host that is the code's workspace; made if missing. Default: a temporary one."""

    @field_validator("timeout")
    @classmethod
    def _at_least_a_second(cls, timeout: int) -> int:
        if timeout < 1:
            raise ValueError("Timeout must be greater than or equal to 1.")
        return timeout


class SandboxedCodeExecutor(StreamingCodeExecutor):
    """Runs code blocks in a sandbox that starts on first use.

    Calls that come at the same time queue: processes of one sandbox cannot be told apart once they have forked.

    Args:
        settings: The time limit.
        workspace: The workspace's directory on the host.
    """

    _LOSS = "The sandbox was lost: {}. Running processes are gone; the next code runs in a fresh sandbox."

    def __init__(self, settings: ExecutorConfig, workspace: HostWorkspace) -> None:
        self._timeout = settings.timeout
        self._workspace = workspace
        self._sandbox: Sandbox | None = None
        self._prepared = False
        self._turns = Turns()
        self._starting = Turns()
        scope.register(self)

    @abstractmethod
    async def _make_sandbox(self) -> Sandbox:
        """A new sandbox, not started."""

    @abstractmethod
    def _run_block(
        self, block: CodeBlock, call: Call, output: Output, result: ExecutionResult
    ) -> AsyncGenerator[str, None]:
        """Run one block, yield its output, and note in ``result`` how it ended."""

    def _is_ready(self) -> bool:
        """Whether the next block can run as it is, without a start or :meth:`_prepare`."""
        return self._prepared and self._sandbox is not None and self._sandbox.running

    async def _prepare(self, call: Call) -> None:
        """Put into a sandbox that has just started what all blocks need."""
        self._prepared = True

    def _new_result(self) -> ExecutionResult:
        return ExecutionResult(exit_code=0, output="")

    async def _clean_up(self, call: Call) -> None:
        """Remove what a call leaves behind."""

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
                    await to_the_end(self._dismiss())
                raise

    async def stop(self) -> None:
        """Stop the sandbox with all that runs in it. Idempotent; a later call starts a new one."""
        async with self._starting:
            await to_the_end(self._dismiss())

    async def restart(self) -> None:
        """Stop everything that runs and start again with the same workspace."""
        async with self._starting:
            if self._sandbox is not None:
                await to_the_end(self._stop_sandbox(self._sandbox))
                await self._running_sandbox()

    def execute_code_blocks_stream(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> AsyncGenerator[str | ExecutionResult, None]:
        return self._execute(code_blocks, cancellation_token)

    async def _execute(
        self,
        code_blocks: list[CodeBlock],
        cancellation_token: CancellationToken,
        tools: HostTools | None = None,
    ) -> AsyncGenerator[str | ExecutionResult, None]:
        if not code_blocks:
            raise SettingError("No code blocks to execute.")
        async with self._turns:
            call = Call(cancellation_token, tools)
            try:
                await self._get_ready(call)
                async with aclosing(self._run_all(code_blocks, call)) as items:
                    async for item in items:
                        yield item
            finally:
                call.stop.cancel()
                await self._clean_up(call)

    async def _get_ready(self, call: Call) -> None:
        if self._is_ready():
            return
        await first(self.start(), call.stop, None)
        if not call.stop.done() and not self._is_ready():
            await self._prepare(call)

    async def _dismiss(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        try:
            if sandbox is not None:
                await self._stop_sandbox(sandbox)
        finally:
            await self._workspace.remove()

    async def _stop_sandbox(self, sandbox: Sandbox) -> None:
        await sandbox.stop()

    async def _running_sandbox(self) -> Sandbox:
        if self._sandbox is None:
            self._sandbox = await self._make_sandbox()
        if not self._sandbox.running:
            # made outside a scope and started inside it, it belongs to it all the same
            scope.register(self)
            self._prepared = False
            await self._sandbox.start()
        return self._sandbox

    def _host_path(self, file: str) -> str | None:
        """The host's name for a file of the workspace, where the workspace is a directory of the host."""
        return None

    async def _run_all(
        self, blocks: list[CodeBlock], call: Call
    ) -> AsyncGenerator[str | ExecutionResult, None]:
        result = self._new_result()
        output, began = Output(), time.monotonic()
        for number, block in enumerate(blocks, 1):
            async with aclosing(self._run_block(block, call, output, result)) as chunks:
                async for chunk in chunks:
                    if chunk:
                        yield chunk
            if result.exit_code != 0 or result.outcome is not Outcome.COMPLETED:
                if left := len(blocks) - number:
                    yield output.add_text(
                        remark(output, f"[{left} more code block(s) not run: block {number} failed]")
                    )
                break
        if rest := output.finish():
            yield rest
        result.output = output.text()
        result.omitted_bytes = output.omitted_bytes
        result.seconds = time.monotonic() - began
        yield result

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
        elif ending is not None and ending.code != 0 and sandbox is not None:
            result.exit_code = ending.code
            result.limit = limit_behind(ending, sandbox, output)
            if result.limit is not None:
                remarks.append(result.limit)
        if (lost := _why_lost(ending, sandbox)) is not None:
            remarks.append(self._LOSS.format(lost))
        return remark(output, "\n".join(remarks)) if remarks else ""


def _why_lost(ending: Exit | None, sandbox: Sandbox | None) -> str | None:
    if ending is None or ending.lost is not None:
        return None if ending is None else ending.lost
    return None if sandbox is None or sandbox.running else "it could not be cleared of all that ran in it"


def limit_behind(ending: Exit, sandbox: Sandbox, output: Output) -> str | None:
    """Which limit of the sandbox ended a block like that, if one did."""
    return diagnose(
        sandbox.limits,
        exit_code=ending.code,
        output=output.end(),
        oom_kills=ending.oom_kills,
        fork_failures=ending.fork_failures,
    )


def remark(output: Output, text: str) -> str:
    """A remark of ours on a line of its own."""
    end = output.end(1)
    return f"\n{text}" if end and end != "\n" else text


def deadline_after(seconds: float) -> float:
    """The moment ``seconds`` from now, in seconds of the event loop's clock."""
    return asyncio.get_running_loop().time() + seconds
