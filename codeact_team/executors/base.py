"""What all executors have in common."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Self

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from packaging.utils import canonicalize_name

from codeact_team.core.aio import Turns
from codeact_team.core.execution import WELL_KNOWN, Artifact, ExecutionResult, HostTools, Outcome
from codeact_team.core.executor_interface import (
    Change,
    ChangedFile,
    Changes,
    Emit,
    RecordedFile,
    SavedFile,
    StreamingCodeExecutor,
    Workspace,
)
from codeact_team.core.files import opened
from codeact_team.core.sandbox_description import DataFile, SandboxDescription
from codeact_team.errors import SettingError
from codeact_team.executors.files.base import take
from codeact_team.executors.lifecycle import Lifecycle, Warmth
from codeact_team.executors.packages.requirements import Interpreter
from codeact_team.executors.place import Place
from codeact_team.executors.running import (
    LOST_EXIT_CODE,
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
from codeact_team.sandbox.base import STOPPED, UNCLEARED, Exit

_Packages = tuple[tuple[str, str], ...]
"""Name and version of each."""

_MAX_SEEN_FILES = 1000

_NAME = re.compile(r"[a-z0-9-]{1,60}")
_VERSION = re.compile(r"[A-Za-z0-9.+!_-]{1,40}")
_TOOLS = ("pip", "setuptools", "wheel")


class Describing:
    """Describes the sandbox of a place, and keeps what it has found out until that is stopped.

    Args:
        config: The executor's settings.
        place: Where code runs.
        runner: How it runs there.
    """

    def __init__(self, config: ExecutorConfig, place: Place, runner: AnyRunner) -> None:
        self._config = config
        self._place = place
        self._runner = runner
        self._found: tuple[Interpreter | None, Sequence[DataFile]] | None = None

    async def describe(self) -> SandboxDescription:
        """The description. The packages must have been prepared.

        Raises:
            SettingError: If there is data that cannot be given.
        """
        if self._found is None:
            looks = self._config.data or self._config.work_dir is not None
            files = await asyncio.to_thread(self._find_files) if looks else ()
            self._found = await self._place.python(), files
        python, files = self._found
        return SandboxDescription(
            lives_on=self._runner.lives_on,
            python=None if python is None else _name_of(python),
            packages=self._packages(python),
            has_network=self._place.has_network,
            block_seconds=self._config.timeout,
            memory_mib=self._place.memory_mib,
            files=files[:_MAX_SEEN_FILES],
            omitted_files=None if len(files) > _MAX_SEEN_FILES else 0,
        )

    def forget(self) -> None:
        """The next description is of another sandbox."""
        self._found = None

    def _find_files(self) -> Sequence[DataFile]:
        """What will be in the workspace, what was given for it first."""
        given = self._place.files.described()
        paths = {file.path for file in given}
        work_dir = self._config.work_dir
        there = () if work_dir is None else _files_in(Path(work_dir))
        return [*given, *(file for file in there if file.path not in paths)]

    def _packages(self, python: Interpreter | None) -> Mapping[str, str]:
        own = () if python is None else python.packages
        return {**_ranked(tuple(self._place.packages.items()), own)}


@lru_cache(maxsize=16)
def _ranked(provided: _Packages, own: _Packages) -> Mapping[str, str]:
    """The packages, those first that are known best. Sandboxes of one config have the same."""
    # the code finds these first
    first = dict(_told(provided))
    order = {name: number for number, name in enumerate(WELL_KNOWN)}

    def rank(package: tuple[str, str]) -> tuple[int, bool, str]:
        name, _ = package
        return order.get(name, len(order)), name not in first, name

    return dict(sorted({**dict(_told(own)), **first}.items(), key=rank))


def _told(packages: _Packages) -> Iterator[tuple[str, str]]:
    """The packages by their common names, without what is no name or no version."""
    for name, version in packages:
        common = canonicalize_name(name)
        if common not in _TOOLS and _NAME.fullmatch(common) and _VERSION.fullmatch(version):
            yield common, version


def _name_of(python: Interpreter) -> str:
    kind = "" if python.implementation == "cpython" else f" ({python.implementation})"
    return f"Python {python.version}{kind}"


def _files_in(directory: Path) -> list[DataFile]:
    """The files in a directory, at most one more than are told; those nearest to its top first."""
    try:
        with opened(directory) as top:
            seen = take(top).files
    except OSError:
        # it is made with the start, or that tells what is wrong with it
        return []
    paths = [path for path in seen if not any(part.startswith(".") for part in path.split("/"))]
    paths.sort(key=lambda path: (path.count("/"), path))
    return [DataFile(path, seen[path].size) for path in paths[: _MAX_SEEN_FILES + 1]]


class SandboxedCodeExecutor(StreamingCodeExecutor):
    """Runs code blocks in a sandbox that starts on first use.

    Calls that come at the same time queue: processes of one sandbox cannot be told apart once they have forked.

    Args:
        config: The settings.
        place: Where the code runs.
        runner: How it runs there.
    """

    component_config_schema: type[Any]
    life_kind: type[Lifecycle] = Lifecycle
    """What starts and stops it."""

    def __init__(self, config: ExecutorConfig, place: Place, runner: AnyRunner) -> None:
        self._config = config
        self._place = place
        self._runner = runner
        self._describing = Describing(config, place, runner)
        self._life = self.life_kind(self, place, runner)
        self._users = self._life.users
        self._turns = Turns()
        self._turn_of: object = None
        """Whose code runs."""
        self.warmth = Warmth(config, place, runner, self._life, self._turns, self._get_ready)
        """What a pool asks of it."""

    @property
    def supported_languages(self) -> Sequence[str]:
        return self._runner.languages

    @property
    def loosenings(self) -> Sequence[str]:
        return self._place.loosenings

    @property
    def work_dir(self) -> Path:
        """The workspace's directory on the host.

        Raises:
            RuntimeError: If it is a temporary one that does not exist yet, or the workspace is in a container only.
        """
        return self._place.workspace.path

    def data_files(self) -> Sequence[DataFile]:
        return self._place.files.described()

    @property
    def reached(self) -> Sequence[Path]:
        return self._place.reached

    @property
    def workspace(self) -> Workspace:
        return self._place.location

    async def changed_files(self) -> Changes:
        async with self._turns:
            return await self._place.files.changed()

    def changed_before(self, changes: Mapping[str, Change]) -> None:
        self._place.files.changed_before(changes)

    async def saved_pictures(self, most: int) -> Sequence[Artifact]:
        async with self._turns:
            return await self._place.files.saved_pictures(most)

    async def save_files(
        self, files: Sequence[ChangedFile], directory: str | os.PathLike[str] | int
    ) -> Sequence[SavedFile]:
        async with self._turns:
            return await self._place.files.save(files, directory)

    @property
    def is_contained(self) -> bool:
        return self._place.is_contained

    async def record_files(self, keep: Callable[[bytes], str | None]) -> Mapping[str, RecordedFile]:
        async with self._turns:
            return await self._place.files.record(keep)

    async def restore_files(
        self, contents: Mapping[str, Path], executable: Container[str], gone: Sequence[str]
    ) -> None:
        async with self._turns:
            await self._place.files.restore(contents, executable, gone)

    async def add_file(self, name: str, data: bytes) -> str:
        async with self._turns:
            return await self._place.files.add(name, data)

    @property
    def timeout(self) -> int:
        """Seconds that one block may take."""
        return self._config.timeout

    async def prepare(self) -> None:
        await self._life.prepare()

    async def describe(self) -> SandboxDescription:
        if not self._place.is_prepared:
            await self.prepare()
        return await self._describing.describe()

    async def start(self) -> None:
        """Start the sandbox now rather than on first use. Idempotent.

        Raises:
            SandboxError: If it cannot start.
        """
        await self._life.start()

    async def stop(self) -> None:
        """Stop the sandbox with all that runs in it. Idempotent; a later call starts a new one."""
        await self._life.stop()
        self._describing.forget()

    async def restart(self) -> None:
        """End everything that runs, and go on afresh with the same workspace; in a session, in the same sandbox."""
        self._users.forget(self)
        if self._turns.taken:
            # maybe by a block of the caller's
            await self._life.renew(in_use=True)
        else:
            async with self._turns:
                await self._life.renew()

    async def release(self, user: object) -> bool:
        self._users.forget(user)
        if self._turn_of is user:
            # its own block, whose stream may never be read to the end
            if not (shared := self._users.in_use):
                await self.restart()
            return not shared
        async with self._turns:
            if not (shared := self._users.in_use):
                await self._life.renew()
        return not shared

    async def run_code_blocks(
        self,
        code_blocks: list[CodeBlock],
        cancellation_token: CancellationToken,
        *,
        user: object | None = None,
        emit: Emit | None = None,
    ) -> ExecutionResult:
        call = Call(cancellation_token, self if user is None else user, None, self._place)
        return await self._run(code_blocks, call, emit)

    async def _run(self, code_blocks: list[CodeBlock], call: Call, emit: Emit | None) -> ExecutionResult:
        if not code_blocks:
            raise SettingError("No code blocks to execute.")
        if not await self._turns.take(call.stop):
            return await self._run_all(code_blocks, call, emit)
        try:
            self._turn_of = call.user
            if not self._life.ready:
                await self._get_ready(call)
            return await self._run_all(code_blocks, call, emit)
        finally:
            call.stop.cancel()
            try:
                await call.end()
            finally:
                self._turn_of = None
                self._turns.pass_on()

    async def _get_ready(self, call: Call) -> None:
        await first(self._life.start(for_use=True), call.stop)
        generation, setup = self._users.generation, self._runner.setup
        while generation.setup_done < len(setup) and not call.stop.done():
            one, output = setup[generation.setup_done], BoundedOutput()
            end = await self._run_program(self._runner.read_setup(one), call, output)
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
        whole.seconds = time.monotonic() - began
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
            if self._place.sandbox is None or call.stop.done():
                return await self._conclude(None, call, output)
            if call.user is not self:
                self._users.generation.claim(None if call.tools is None else call.tools.rights)
            is_new, loss = self._users.note(call.user)
            if loss is not None and self._runner.loss_before is not None:
                state_lost = True
                await output.remark(f"{self._runner.loss_before.format(loss)}\n")
            end = await self._run_program(program, call, output, call.tools)
            if is_last or call.stop.done() or end.ran or end.exit.lost is None:
                break
            # the interpreter had ended before
            self._life.lose(end.exit.lost, told=call.user if is_new else None)
            await self._get_ready(call)
        if end.exit.code == 0 and end.exit.lost is None and end.sandbox_lives and not call.stop.done():
            # as most do
            return BlockResult(state_lost=state_lost, end=end)
        result = await self._conclude(end, call, output)
        result.state_lost = result.state_lost or state_lost
        return result

    async def _run_program(
        self, program: Any, call: Call, output: BoundedOutput, tools: HostTools | None = None
    ) -> BlockEnd:
        call.begin_block(self._config.timeout)
        return await self._runner.run(program, self._place, call, output, tools)

    async def _conclude(self, end: BlockEnd | None, call: Call, output: BoundedOutput) -> BlockResult:
        """What became of a block, ``None`` if it never began. Adds to the output what there is to say of it."""
        sandbox = self._place.sandbox
        if end is not None:
            ending = end.exit
        else:
            ending = Exit(0) if call.stop.done() else Exit(LOST_EXIT_CODE, lost=STOPPED)
        result = judge(ending, call, sandbox, output, self._config.timeout)
        result.end = end
        remarks = [] if result.remark is None else [result.remark]
        lost = ending.lost
        if lost is None and end is not None and sandbox is not None and not sandbox.running:
            lost = UNCLEARED
        if lost is not None:
            result.state_lost = True
            self._life.lose(lost, told=call.user)
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
