"""The base of all executors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock

from codeact_team.core.aio import FairLock
from codeact_team.core.execution import ExecutionResult, Outcome, SessionResult
from codeact_team.core.executor_interface import Emit, StreamingCodeExecutor
from codeact_team.core.sandbox_description import DataEntry, SandboxDescription
from codeact_team.core.showing import in_few_words
from codeact_team.errors import SettingError
from codeact_team.executors.environment import Environment
from codeact_team.executors.lifecycle import Lifecycle
from codeact_team.executors.processes import Processes
from codeact_team.executors.running import (
    AnyRunner,
    BlockError,
    BoundedOutput,
    Call,
    first,
    judge,
    judge_exceeded,
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
        turns: FairLock | None = None,
    ) -> None:
        self._config = config
        self._environment = environment
        self._runner = runner
        self._turns = turns or environment.turns
        self.life: Lifecycle = self.life_kind(self, config, environment, runner, self._turns, self._get_ready)
        """Starts and stops it. For pools."""
        if environment.egress is not None and environment.egress.part is None:
            # requests of a fork are its executor's, too
            environment.egress.part = self
        self.processes: Processes = Processes(self, self._process_server)
        """Runs programs in the sandbox."""
        self._turn_of: object = None
        """The user whose code runs."""

    def __repr__(self) -> str:
        config = self._config
        told = {"packages": [*config.packages], "data": [*config.data], "work_dir": config.work_dir}
        return in_few_words(
            self, {**{name: told[name] for name in told if told[name]}, "running": self._environment.running}
        )

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
    def asks_about_hosts(self) -> bool:
        return self._environment.egress is not None and self._environment.egress.rules.asks_any

    def recall_request(self, method: str, url: str) -> None:
        if (egress := self._environment.egress) is not None:
            egress.policy.recall_request(method, url)

    def recall_answer(self, host: str, *, is_allowed: bool, reason: str) -> None:
        if (egress := self._environment.egress) is not None:
            egress.policy.recall_answer(host, is_allowed=is_allowed, reason=reason)

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

    async def add_data(self, path: str) -> Sequence[DataEntry]:
        await self.start()
        async with self._environment.turns:
            return await self._environment.add_data(path, self.life.report_preparing)

    def know_data(self, entries: Sequence[DataEntry]) -> None:
        self._environment.know_data(entries)

    async def start(self) -> None:
        """Start the sandbox now rather than on first use. Idempotent.

        Raises:
            SandboxError: If it cannot start.
        """
        await self.life.start()

    async def stop(self) -> None:
        """Stop the sandbox with all that runs in it. Idempotent; a later call starts a new one."""
        await self.life.stop()
        await self.processes.jobs.settled()

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

    async def finish(self) -> Sequence[str]:
        async with self._turns:
            return await self.life.finish()

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
        if not await self._turns.acquire(call.stop):
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
        server = await self._runner.serve_processes(self._environment, user)
        server.quota = self._environment.quota
        sandbox = self._environment.sandbox
        if user is None or (sandbox is not None and sandbox.is_own_user(user)):
            # the processes of other users have another supervisor, and no way out
            server.performers = self._environment.egress
        return server

    async def _get_ready(self, call: Call) -> None:
        await first(self.life.start(for_use=True), call.stop)
        generation, setup = self.life.generation, self._runner.setup
        while generation.setup_done < len(setup) and not call.stop.done():
            one, output = setup[generation.setup_done], BoundedOutput()
            result = self._runner.result_type(0, "")
            call.begin_block(self._config.timeout)
            program = self._runner.read_setup(one)
            ending = await self._runner.run(program, self._environment, call, output, result)
            await self._conclude(ending, call, output, result)
            if call.stop.done() and not call.timed_out:
                return
            if result.exit_code != 0:
                raise SettingError(f"{one.failure}{output.text()}")
            generation.setup_done += 1

    async def _run_all(self, blocks: list[CodeBlock], call: Call, emit: Emit | None) -> ExecutionResult:
        output, began = BoundedOutput(emit), time.monotonic()
        result: ExecutionResult = self._runner.result_type(0, "", processor_seconds=0.0)
        try:
            for number, block in enumerate(blocks, 1):
                await self._run_block(block, call, output, result)
                if result.exit_code != 0 or result.outcome is not Outcome.COMPLETED:
                    if left := len(blocks) - number:
                        await output.remark(f"[{left} more code block(s) not run: block {number} failed]")
                    break
        finally:
            await call.end()
        if call.exceeded is not None and result.limit is None and result.outcome is Outcome.COMPLETED:
            # found when the last block had just ended
            await output.remark(judge_exceeded(call.exceeded, result))
        for denied in self._environment.take_denials():
            await output.remark(f"[{denied.told}]")
        await output.finish()
        result.output, result.omitted_bytes = output.text(), output.omitted_bytes
        result.seconds = time.monotonic() - began - call.paused_for
        return result

    async def _run_block(
        self, block: CodeBlock, call: Call, output: BoundedOutput, result: ExecutionResult
    ) -> None:
        try:
            program = self._runner.read(block)
        except BlockError as error:
            await output.write(str(error).encode())
            result.exit_code, result.outcome = 1, Outcome.NOT_RUN
            return
        for is_last in (False, True):
            if self._environment.sandbox is None or call.stop.done():
                await self._conclude(None, call, output, result)
                return
            if call.user is not self:
                self.life.generation.claim(None if call.tools is None else call.tools.rights)
            is_new, loss = self.life.note(call.user)
            if loss is not None and self._runner.loss_before is not None:
                _note_loss(result)
                await output.remark(f"{self._runner.loss_before.format(loss)}\n")
            call.begin_block(self._config.timeout if call.timeout is None else call.timeout)
            async with self._environment.performing(self._runner.unit, call.paused):
                ending = await self._runner.run(program, self._environment, call, output, result, call.tools)
            if is_last or call.stop.done() or ending.ran or ending.lost is None:
                break
            # the interpreter had ended before
            self.life.lose(ending.lost, known_to=call.user if is_new else None)
            await self._get_ready(call)
        used = ending.processor_seconds
        if used is None or result.processor_seconds is None:
            result.processor_seconds = None
        else:
            result.processor_seconds += used
        if not (ending.code == 0 and ending.lost is None and ending.sandbox_lives) or call.stop.done():
            await self._conclude(ending, call, output, result)

    async def _conclude(
        self, ended: Exit | None, call: Call, output: BoundedOutput, result: ExecutionResult
    ) -> None:
        """Note in the result how a block has ended, ``None`` if it never began. Adds remarks to the output."""
        sandbox = self._environment.sandbox
        ending = ended or (Exit(0) if call.stop.done() else Exit(KILLED, lost=STOPPED))
        remarks = [judge(ending, call, sandbox, output, result)]
        lost = ending.lost
        if lost is None and ended is not None and sandbox is not None and not sandbox.running:
            lost = UNCLEARED
        if lost is not None:
            _note_loss(result)
            self.life.lose(lost, known_to=call.user)
            remarks.append(self._runner.loss.format(lost))
            is_unexplained = result.outcome is Outcome.LOST and result.limit is None
            if is_unexplained and ending.sandbox_lives:
                result.limit = limit_behind(ending, sandbox, output)
                remarks.append(result.limit)
        if words := "\n".join(filter(None, remarks)):
            await output.remark(words)

    def _to_config(self) -> Any:
        return self.component_config_schema.model_validate(self._config.model_dump())

    @classmethod
    def _from_config(cls, config: Any) -> Self:
        return cls(**config.model_dump())


def _note_loss(result: ExecutionResult) -> None:
    if isinstance(result, SessionResult):
        result.state_lost = True
