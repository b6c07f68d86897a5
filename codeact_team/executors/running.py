"""Running code blocks one after the other: bounded output, stops and results."""

from __future__ import annotations

import asyncio
import codecs
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock

from codeact_team.core.aio import Timer, Turns, to_the_end
from codeact_team.core.execution import Artifact, ExecutionResult, HostTools, Outcome, missing_module, remark
from codeact_team.core.executor_interface import Emit
from codeact_team.executors.environment import Environment
from codeact_team.sandbox.base import FILE_TOO_LARGE, Cause, Exit, Sandbox, diagnose, limit_sentence
from codeact_team.session.connection import Report
from codeact_team.session.processes import ProcessServer

T = TypeVar("T")


class Call:
    """One call of an executor: the user of the code, its tools, and what stops it.

    Attributes:
        stop: Done when the code has to stop; cancelled if the call is cancelled.
        timeout: Seconds that each block of the user may take; ``None`` for the executor's.
        timed_out: Whether the reason is the time limit of a block.
        block_ended: Whether the present block has ended by itself, so that its time limit is off.
        exceeded: The setting of the workspace's quota that is the reason, if it is.
        seconds: The time that the present block has.
        paused_for: Seconds for which the time of the blocks so far did not run.
    """

    def __init__(
        self,
        cancellation_token: CancellationToken,
        user: object,
        tools: HostTools | None,
        environment: Environment,
        timeout: float | None = None,
    ) -> None:
        self.stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.user = user
        self.tools = tools
        self.timeout = timeout
        self.timed_out = False
        self.block_ended = False
        self.exceeded: str | None = None
        self.seconds = 0.0
        self.paused_for = 0.0
        self._environment = environment
        self._time: Timer | None = None
        self._next_check: asyncio.TimerHandle | None = None
        """The next check of the quota."""
        self._checking: asyncio.Task[None] | None = None
        cancellation_token.link_future(self.stop)

    @property
    def has_full_disk(self) -> bool:
        """Whether a file system of the host has no room left for the workspace. Blocks for a moment."""
        return self._environment.quota.has_full_disk

    @property
    def deadline(self) -> float:
        """The end of the present block's time, in seconds of the event loop's clock."""
        return self._timer.deadline

    def paused(self) -> AbstractContextManager[None]:
        """A context manager in which the time of the present block does not run. It can be nested."""
        return self._timer.paused()

    def begin_block(self, seconds: float) -> None:
        """Begin the time of a block, in seconds."""
        self.seconds, self.block_ended = seconds, False
        if self._time is None:
            self._check_in(self._environment.quota.pause)
        else:
            self._close(self._time)
        self._time = Timer(asyncio.get_running_loop().time() + seconds, self._time_out)

    async def end(self) -> None:
        """Stop watching time and quota, and wait for a check of the quota that has begun. Idempotent."""
        if self._time is None:
            return
        self._close(self._time)
        # it refers to this call, and would keep the user alive
        self._time = None
        quota = self._environment.quota
        if self._next_check is not None:
            self._next_check.cancel()
            # short calls add up
            quota.pause = max(0.0, self._next_check.when() - asyncio.get_running_loop().time())
        if self._checking is not None:
            await to_the_end(self._checking)
        if self.exceeded is not None:
            # what code has added while it was being ended is not the next block's
            await quota.check()

    def _close(self, time: Timer) -> None:
        time.close()
        self.paused_for += time.paused_for

    @property
    def _timer(self) -> Timer:
        assert self._time is not None, "a block has begun"
        return self._time

    def _time_out(self) -> None:
        if not (self.block_ended or self.stop.done()):
            self.timed_out = True
            self.stop.set_result(None)

    def _check_in(self, seconds: float) -> None:
        self._next_check = asyncio.get_running_loop().call_later(seconds, self._begin_check)

    def _begin_check(self) -> None:
        self._next_check, self._checking = None, asyncio.ensure_future(self._check())

    async def _check(self) -> None:
        quota = self._environment.quota
        self.exceeded = await quota.check()
        if self.exceeded is None:
            if self._time is not None:
                self._check_in(quota.pause)
        elif not self.stop.done():
            self.stop.set_result(None)


async def first(
    work: Coroutine[Any, Any, T],
    stop: asyncio.Future[None] | None,
    deadline: float | None = None,
    *,
    undo: Callable[[T], Awaitable[None]] | None = None,
) -> T | None:
    """Await ``work`` until ``stop`` is done, or the deadline of the loop's clock has passed. Then cancel it: ``None``.

    ``undo`` is called with a result that the caller cannot get, being cancelled just when it comes.
    """
    left = None if deadline is None else deadline - asyncio.get_running_loop().time()
    if (left is not None and left <= 0) or (stop is not None and stop.done()):
        # asked before the work: a flood of output is always ready first
        work.close()
        return None
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait(
            {task} if stop is None else {task, stop}, timeout=left, return_when=asyncio.FIRST_COMPLETED
        )
        await _cancelled(task)
    except BaseException:
        await to_the_end(_cancelled(task))
        if undo is not None and not task.cancelled() and task.exception() is None:
            await to_the_end(undo(task.result()))
        raise
    return None if task.cancelled() else task.result()


async def _cancelled(task: asyncio.Future[Any]) -> None:
    if not task.done():
        task.cancel()
        await asyncio.wait({task})


def deadline_after(seconds: float) -> float:
    """The moment ``seconds`` from now, in seconds of the event loop's clock."""
    return asyncio.get_running_loop().time() + seconds


MAX_OUTPUT_BYTES = 1024 * 1024
"""Bytes of output that one call keeps; more is cut in the middle. Emitted output is not cut."""


class BoundedOutput:
    """The output of the blocks of one call. Keeps the first and the last half of ``limit`` bytes, and emits all of it."""

    def __init__(self, emit: Emit | None = None, limit: int = MAX_OUTPUT_BYTES) -> None:
        self._half = self._room = limit // 2
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_size = 0
        self._dropped = 0
        self._emit = emit
        self._decoder = None if emit is None else codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def omitted_bytes(self) -> int:
        """How many bytes were dropped from the middle."""
        return self._dropped + max(0, self._tail_size - self._half)

    async def write(self, data: bytes) -> None:
        """Append data, and emit it; an incomplete character is emitted with the next piece."""
        if len(data) <= self._room:
            self._head += data
            self._room -= len(data)
        else:
            self._head += data[: self._room]
            self._keep_end(data[self._room :])
            self._room = 0
        if self._decoder is not None:
            await self._pass_on(self._decoder.decode(data))

    async def remark(self, text: str) -> None:
        """Append a remark of ours, on a line of its own."""
        end = self.end(1)
        await self.write((f"\n{text}" if end and end != "\n" else text).encode())

    async def finish(self) -> None:
        """Emit an incomplete character at the end."""
        if self._decoder is not None:
            await self._pass_on(self._decoder.decode(b"", final=True))

    def text(self) -> str:
        """The text that was kept, with a remark where it was cut."""
        if not self._tail:
            return self._head.decode(errors="replace")
        tail = b"".join(self._tail)[-self._half :]
        if not (omitted := self.omitted_bytes):
            return (self._head + tail).decode(errors="replace")
        cut = f"\n[... {omitted} bytes of output omitted ...]\n"
        return self._head.decode(errors="replace") + cut + tail.decode(errors="replace")

    def end(self, size: int = 4000) -> str:
        """The last ``size`` bytes."""
        tail = b"".join(self._tail)
        head = self._head[max(0, len(self._head) + len(tail) - size) :]
        return (head + tail)[-size:].decode(errors="replace")

    def _keep_end(self, data: bytes) -> None:
        self._tail.append(data)
        self._tail_size += len(data)
        while self._tail_size - len(self._tail[0]) >= self._half:
            oldest = self._tail.popleft()
            self._tail_size -= len(oldest)
            self._dropped += len(oldest)

    async def _pass_on(self, text: str) -> None:
        if text and self._emit is not None:
            await self._emit(text)


class BlockError(Exception):
    """A block that cannot be run as it is; the text is for the model."""


@dataclass(slots=True)
class BlockEnd:
    """How a block ended.

    Attributes:
        exit: Its exit code, the reason if the state of the blocks is lost, and the kernel's counts.
        ran: Whether it began to run.
        sandbox_lives: Whether the sandbox is known to run, even if an interpreter is lost.
        code_file: The path on this machine of the file with the code, if it is there.
        report: The interpreter's report, if it has written one.
        artifacts: The artifacts that an interpreter has shown.
    """

    exit: Exit
    ran: bool = True
    sandbox_lives: bool = False
    code_file: str | None = None
    report: Report | None = None
    artifacts: Sequence[Artifact] = ()


@dataclass(frozen=True)
class Setup:
    """A block that runs in each new generation before all others."""

    language: str
    code: str
    failure: str
    """The text before its output if it fails."""
    may_read_data: bool = True
    """Whether it may read the data, besides modules."""


Program = TypeVar("Program")


class CodeRunner(ABC, Generic[Program]):
    """Runs code in the sandbox of an environment."""

    lives_on: bool
    """Whether Python blocks share an interpreter."""
    loss: str
    """The remark for the model when the state of the blocks is lost; ``{}`` becomes the reason."""
    loss_before: str | None = None
    """The same, if it was lost between two blocks of a user; ``None`` for no remark."""

    def __init__(self, languages: Iterable[str]) -> None:
        self.languages = tuple(languages)
        self.setup: list[Setup] = []

    @property
    def interpreter(self) -> int | None:
        """The number of the present interpreter, as last reported, if any."""
        return 0

    @property
    def interpreter_loss(self) -> str:
        """Why the previous interpreter is gone."""
        return ""

    async def open(self, environment: Environment) -> None:
        """Start what all blocks need in the sandbox, which runs. Idempotent. Raises a ``SandboxError``."""

    async def close(self) -> str | None:
        """End that. Returns the reason if it had ended before."""
        return None

    async def is_well(self, environment: Environment, call: Call) -> bool:
        """Whether a sandbox in which no block has run answers. Raises a ``SandboxError`` if it has ended."""
        return environment.sandbox is not None and await environment.sandbox.answers()

    def take_over(self, other: AnyRunner) -> None:
        """Take what another runner has opened in the sandbox. It has nothing open afterwards."""

    @abstractmethod
    async def serve_processes(
        self, environment: Environment, turns: Turns, user: str | None
    ) -> ProcessServer:
        """What starts processes in the sandbox, which runs, as one of its users, ``None`` for that of the code.

        ``turns`` are held while blocks run. Raises a ``LookupError`` without such a user, and a ``SandboxError``.
        """

    async def finish(self) -> None:
        """End in order what a block has left running, if the blocks share anything. The caller holds the turns of blocks."""

    async def renew(self, environment: Environment, *, in_use: bool) -> None:
        """End the state of the blocks; if ``in_use``, while one may run."""
        if environment.sandbox is not None:
            await to_the_end(environment.sandbox.stop())

    @abstractmethod
    def read(self, block: CodeBlock) -> Program:
        """The program for a block. Raises a :class:`BlockError` if it cannot run."""

    def read_setup(self, setup: Setup) -> Program:
        """The program for a piece of the setup."""
        return self.read(CodeBlock(setup.code, setup.language))

    @abstractmethod
    async def run(
        self,
        program: Program,
        environment: Environment,
        call: Call,
        output: BoundedOutput,
        tools: HostTools | None = None,
    ) -> BlockEnd:
        """Run a program until it ends, or the call is stopped. Raises a ``SandboxError`` if nothing can run here at all."""

    @abstractmethod
    def result(self, ends: Sequence[BlockEnd], *, state_lost: bool) -> ExecutionResult:
        """The result of a call, by the ends of its blocks."""


AnyRunner: TypeAlias = CodeRunner[Any]

TIMEOUT_EXIT_CODE = 124
"""What the ``timeout`` command exits with, and AutoGen's executors report."""


@dataclass(slots=True)
class BlockResult:
    """The result of a block. That of the last block is that of the call."""

    exit_code: int = 0
    outcome: Outcome = Outcome.COMPLETED
    limit: str | None = None
    remark: str | None = None
    """A remark for the output."""
    state_lost: bool = False
    """Whether the state of the blocks is lost, or was before."""
    end: BlockEnd | None = None
    """Its end; ``None`` if it never began."""
    missing_module: str | None = None
    """The Python module whose absence ended it."""


def judge(ending: Exit, call: Call, sandbox: Sandbox | None, output: BoundedOutput) -> BlockResult:
    """The result of a block of the call, by its exit."""
    if call.exceeded is not None:
        return exceeded(call.exceeded, Outcome.COMPLETED if ending.lost is None else Outcome.LOST)
    if call.timed_out:
        words = f"Timeout: stopped after {call.seconds:g} s, the limit that `timeout` sets."
        return BlockResult(TIMEOUT_EXIT_CODE, Outcome.TIMED_OUT, f"time (timeout: {call.seconds:g})", words)
    if call.stop.cancelled():
        return BlockResult(1, Outcome.CANCELLED, remark="Code execution was cancelled.")
    if ending.lost is not None:
        return BlockResult(ending.code, Outcome.LOST)
    if ending.code == 0:
        return BlockResult()
    if not ending.oom_kills and (module := missing_module(output.end())) is not None:
        has_network = sandbox is None or Cause.NETWORK not in sandbox.limits
        words = remark(module, has_network=has_network)
        return BlockResult(ending.code, missing_module=module, remark=words)
    limit = limit_behind(ending, sandbox, output)
    if limit is not None and str(Cause.DISK) in limit and call.has_full_disk:
        return BlockResult(ending.code, remark=_FULL)
    return BlockResult(ending.code, limit=limit, remark=limit)


_FULL = "The disk of this machine that has the workspace is full. This is no limit of the sandbox."


def exceeded(field: str, outcome: Outcome = Outcome.COMPLETED) -> BlockResult:
    """The result of a block that exceeds the quota of the workspace, which is the setting ``field``."""
    limit = limit_sentence(Cause.DISK, field)
    return BlockResult(FILE_TOO_LARGE, outcome, limit, f"{limit} Remove files that are not needed.")


def limit_behind(ending: Exit, sandbox: Sandbox | None, output: BoundedOutput) -> str | None:
    """The limit of the sandbox that explains the exit of a block, if one does."""
    if sandbox is None:
        return None
    return diagnose(
        sandbox.limits,
        exit_code=ending.code,
        output=output.end(),
        oom_kills=ending.oom_kills,
        fork_failures=ending.fork_failures,
    )
