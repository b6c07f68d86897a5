"""What all executors have in common."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock

from codeact_team.core.aio import Turns
from codeact_team.core.execution import ExecutionResult, Outcome
from codeact_team.core.executor_interface import Emit, StreamingCodeExecutor
from codeact_team.core.sandbox_description import SandboxDescription
from codeact_team.errors import SettingError
from codeact_team.executors.environment import Environment
from codeact_team.executors.lifecycle import Lifecycle
from codeact_team.executors.processes import Processes
from codeact_team.executors.running import (
    AnyRunner,
    BlockEnd,
    BlockError,
    BlockResult,
    BoundedOutput,
    Call,
    exceeded,
    first,
    judge,
    limit_behind,
)
from codeact_team.executors.settings import ExecutorConfig
from codeact_team.executors.workspace.workspace import SandboxWorkspace
from codeact_team.sandbox.base import KILLED, STOPPED, UNCLEARED, Exit
from codeact_team.session.processes import ProcessServer


class SandboxedCodeExecutor(StreamingCodeExecutor):
    """Runs code blocks in a sandbox that starts on first use.

    Concurrent calls queue by ``turns``: once processes have forked, nothing tells the calls in one sandbox apart.
    """

    component_config_schema: type[Any]
    life_kind: type[Lifecycle] = Lifecycle

    def __init__(
        self,
        config: ExecutorConfig,
        environment: Environment,
        runner: AnyRunner,
        turns: Turns | None = None,
    ) -> None:
        self._config = config
        self._environment = environment
        self._runner = runner
        self._turns = turns or environment.turns
        self.life = self.life_kind(self, config, environment, runner, self._turns, self._get_ready)
        """Starts and stops it. For pools."""
        self.processes = Processes(self, self._process_server)
        """Runs programs in the sandbox."""
        self._turn_of: object = None
        """The user whose code runs."""

    @property
    def supported_languages(self) -> Sequence[str]:
        return self._runner.languages

    @property
    def relaxations(self) -> Sequence[str]:
        return self._environment.relaxations

    @property
    def workspace(self) -> SandboxWorkspace:
        return self._environment.workspace

    @property
    def work_dir(self) -> Path:
        """The workspace's directory on the host.

        Raises:
            RuntimeError: If it is a temporary one that does not exist yet, or the workspace is in a container only.
        """
        return self._environment.directory.path

    @property
    def reached(self) -> Sequence[Path]:
        return self._environment.reached

    @property
    def is_contained(self) -> bool:
        return self._environment.is_contained

    @property
    def timeout(self) -> int:
        """Seconds that one block may take."""
        return self._config.timeout

    @property
    def restarts(self) -> int:
        return self.life.restarts

    async def prepare(self) -> None:
        await self.life.prepare()

    async def describe(self) -> SandboxDescription:
        if not self._environment.is_prepared:
            await self.prepare()
        return await self._environment.describe(lives_on=self._runner.lives_on)

    async def start(self) -> None:
        """Start the sandbox now rather than on first use. Idempotent.

        Raises:
            SandboxError: If it cannot start.
        """
        await self.life.start()

    async def stop(self) -> None:
        """Stop the sandbox with all that runs in it. Idempotent; a later call starts a new one."""
        await self.life.stop()
        await self.processes.settled()

    async def restart(self) -> None:
        """End everything that runs, and begin anew with the same workspace; in a session, in the same sandbox."""
        self.life.forget(self)
        if self._turns.taken:
            # maybe by a block of the caller's
            await self.life.renew(in_use=True)
        else:
            async with self._turns:
                await self._runner.finish()
                await self.life.renew()

    async def finish(self) -> None:
        async with self._turns:
            await self.life.finish()

    async def release(self, user: object) -> bool:
        self.life.forget(user)
        if self._turn_of is user:
            # its own block, whose stream may never be read to the end
            if not (shared := self.life.in_use):
                await self.restart()
            return not shared
        async with self._turns:
            if not (shared := self.life.in_use):
                await self.life.renew()
        return not shared

    async def run_code_blocks(
        self,
        code_blocks: list[CodeBlock],
        cancellation_token: CancellationToken,
        *,
        user: object | None = None,
        emit: Emit | None = None,
    ) -> ExecutionResult:
        call = Call(cancellation_token, self if user is None else user, None, self._environment)
        return await self._run(code_blocks, call, emit)

    async def _run(self, code_blocks: list[CodeBlock], call: Call, emit: Emit | None) -> ExecutionResult:
        if not code_blocks:
            raise SettingError("No code blocks to execute.")
        if not await self._turns.take(call.stop):
            return await self._run_all(code_blocks, call, emit)
        try:
            self._turn_of = call.user
            if not self.life.ready:
                await self._get_ready(call)
            return await self._run_all(code_blocks, call, emit)
        finally:
            call.stop.cancel()
            try:
                await call.end()
            finally:
                self._turn_of = None
                self._turns.pass_on()

    async def _process_server(self, user: str | None) -> ProcessServer:
        if not self.life.ready:
            await self.life.start(for_use=True)
        server = await self._runner.serve_processes(self._environment, self._turns, user)
        server.quota = self._environment.quota
        return server

    async def _get_ready(self, call: Call) -> None:
        await first(self.life.start(for_use=True), call.stop)
        generation, setup = self.life.generation, self._runner.setup
        while generation.setup_done < len(setup) and not call.stop.done():
            one, output = setup[generation.setup_done], BoundedOutput()
            call.begin_block(self._config.timeout)
            end = await self._runner.run(self._runner.read_setup(one), self._environment, call, output)
            result = await self._conclude(end, call, output)
            if call.stop.done() and not call.timed_out:
                return
            if result.exit_code != 0:
                raise SettingError(f"{one.failure}{output.text()}")
            generation.setup_done += 1

    async def _run_all(self, blocks: list[CodeBlock], call: Call, emit: Emit | None) -> ExecutionResult:
        output, began = BoundedOutput(emit), time.monotonic()
        ends: list[BlockEnd] = []
        result = BlockResult()
        state_lost = False
        try:
            for number, block in enumerate(blocks, 1):
                result = await self._run_block(block, call, output)
                state_lost = state_lost or result.state_lost
                if result.end is not None:
                    ends.append(result.end)
                if result.exit_code != 0 or result.outcome is not Outcome.COMPLETED:
                    if left := len(blocks) - number:
                        await output.remark(f"[{left} more code block(s) not run: block {number} failed]")
                    break
        finally:
            await call.end()
        if call.exceeded is not None and result.limit is None and result.outcome is Outcome.COMPLETED:
            # found when the last block had just ended
            result = exceeded(call.exceeded)
            await output.remark(result.remark or "")
        await output.finish()
        whole = self._runner.result(ends, state_lost=state_lost)
        whole.exit_code, whole.outcome, whole.limit = result.exit_code, result.outcome, result.limit
        whole.missing_module = result.missing_module
        whole.output, whole.omitted_bytes = output.text(), output.omitted_bytes
        whole.seconds = time.monotonic() - began - call.paused_for
        used = [end.exit.processor_seconds for end in ends]
        whole.processor_seconds = None if None in used else sum(filter(None, used))
        return whole

    async def _run_block(self, block: CodeBlock, call: Call, output: BoundedOutput) -> BlockResult:
        try:
            program = self._runner.read(block)
        except BlockError as error:
            await output.write(str(error).encode())
            return BlockResult(exit_code=1, outcome=Outcome.NOT_RUN)
        state_lost = False
        for is_last in (False, True):
            if self._environment.sandbox is None or call.stop.done():
                return await self._conclude(None, call, output)
            if call.user is not self:
                self.life.generation.claim(None if call.tools is None else call.tools.rights)
            is_new, loss = self.life.note(call.user)
            if loss is not None and self._runner.loss_before is not None:
                state_lost = True
                await output.remark(f"{self._runner.loss_before.format(loss)}\n")
            call.begin_block(self._config.timeout if call.timeout is None else call.timeout)
            end = await self._runner.run(program, self._environment, call, output, call.tools)
            if is_last or call.stop.done() or end.ran or end.exit.lost is None:
                break
            # the interpreter had ended before
            self.life.lose(end.exit.lost, known_to=call.user if is_new else None)
            await self._get_ready(call)
        if end.exit.code == 0 and end.exit.lost is None and end.sandbox_lives and not call.stop.done():
            # as most do
            return BlockResult(state_lost=state_lost, end=end)
        result = await self._conclude(end, call, output)
        result.state_lost = result.state_lost or state_lost
        return result

    async def _conclude(self, end: BlockEnd | None, call: Call, output: BoundedOutput) -> BlockResult:
        """The result of a block, whose end is ``None`` if it never began. Adds remarks to the output."""
        sandbox = self._environment.sandbox
        if end is not None:
            ending = end.exit
        else:
            ending = Exit(0) if call.stop.done() else Exit(KILLED, lost=STOPPED)
        result = judge(ending, call, sandbox, output)
        result.end = end
        remarks = [] if result.remark is None else [result.remark]
        lost = ending.lost
        if lost is None and end is not None and sandbox is not None and not sandbox.running:
            lost = UNCLEARED
        if lost is not None:
            result.state_lost = True
            self.life.lose(lost, known_to=call.user)
            remarks.append(self._runner.loss.format(lost))
            is_unexplained = result.outcome is Outcome.LOST and result.limit is None
            if is_unexplained and end is not None and end.sandbox_lives:
                result.limit = limit_behind(ending, sandbox, output)
                remarks += [] if result.limit is None else [result.limit]
        if remarks:
            await output.remark("\n".join(remarks))
        return result

    def _to_config(self) -> Any:
        return self.component_config_schema.model_validate(self._config.model_dump())

    @classmethod
    def _from_config(cls, config: Any) -> Self:
        return cls(**config.model_dump())
