"""Running code blocks one after the other: bounded output, stops and results."""

from __future__ import annotations

import asyncio
import codecs
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock

from codeact_team.core.aio import Timer, to_the_end
from codeact_team.core.execution import ExecutionResult, HostTools, Outcome, missing_module, remark
from codeact_team.core.executor_interface import Emit
from codeact_team.executors.environment import Environment
from codeact_team.sandbox.base import FILE_TOO_LARGE, Cause, Exit, Sandbox, diagnose, limit_sentence
from codeact_team.sandbox.processes import NewestBytes
from codeact_team.session.processes import ProcessServer
from codeact_team.session.protocol import MAX_CODE_BYTES, MIB

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
        self.timed_out: bool = False
        self.block_ended: bool = False
        self.exceeded: str | None = None
        self.seconds: float = 0.0
        self.paused_for: float = 0.0
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


_MAX_OUTPUT_BYTES = 1024 * 1024
"""Bytes of output that one call keeps; more is cut in the middle. Emitted output is not cut."""


class BoundedOutput:
    """The output of the blocks of one call. Keeps the first and the last half of ``limit`` bytes, and emits all of it."""

    def __init__(self, emit: Emit | None = None, limit: int = _MAX_OUTPUT_BYTES) -> None:
        self._room = limit // 2
        self._head = bytearray()
        self._tail = NewestBytes(limit // 2)
        self._emit = emit
        self._decoder = None if emit is None else codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def omitted_bytes(self) -> int:
        """The number of bytes that were dropped from the middle."""
        return self._tail.content()[1]

    async def write(self, data: bytes) -> None:
        """Append data, and emit it; an incomplete character is emitted with the next piece."""
        if len(data) <= self._room:
            self._head += data
            self._room -= len(data)
        else:
            self._head += data[: self._room]
            self._tail.add(data[self._room :])
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
        tail, omitted = self._tail.content()
        if not omitted:
            return (self._head + tail).decode(errors="replace")
        cut = f"\n[... {omitted} bytes of output omitted ...]\n"
        return self._head.decode(errors="replace") + cut + tail.decode(errors="replace")

    def end(self, size: int = 4000) -> str:
        """The last ``size`` bytes."""
        tail, _ = self._tail.content()
        head = self._head[max(0, len(self._head) + len(tail) - size) :]
        return (head + tail)[-size:].decode(errors="replace")

    async def _pass_on(self, text: str) -> None:
        if text and self._emit is not None:
            await self._emit(text)


class BlockError(Exception):
    """A block that cannot be run as it is; the text is for the model."""


def require_size(block: CodeBlock) -> None:
    """Raise a :class:`BlockError` if a block is larger than a supervisor takes."""
    # a character has four bytes at most
    if len(block.code) * 4 > MAX_CODE_BYTES < (size := len(block.code.encode(errors="replace"))):
        limit = MAX_CODE_BYTES // MIB
        raise BlockError(
            f"The block has {size} bytes; at most {limit} MiB are allowed. Put data into a file."
        )


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
Result = TypeVar("Result", bound=ExecutionResult)


class CodeRunner(ABC, Generic[Program, Result]):
    """Runs code in the sandbox of an environment."""

    result_type: type[Result]
    """The class of a call's result."""
    lives_on: bool
    """Whether Python blocks share an interpreter."""
    loss: str
    """The remark for the model when the state of the blocks is lost; ``{}`` becomes the reason."""
    loss_before: str | None = None
    """The same, if it was lost between two blocks of a user; ``None`` for no remark."""

    def __init__(self, languages: Iterable[str]) -> None:
        self.languages: tuple[str, ...] = tuple(languages)
        self.setup: list[Setup] = []

    @property
    def interpreter(self) -> int | None:
        """The number of the present interpreter, as last reported, if any."""
        return 0

    @property
    def unit(self) -> str | None:
        """The supervisor's name of what runs all blocks; ``None`` if each is a process of its own."""
        return None

    @property
    def interpreter_loss(self) -> str:
        """The reason for which the previous interpreter is gone."""
        return ""

    async def open(self, environment: Environment) -> None:
        """Start what all blocks need in the sandbox, which runs. Idempotent. Raises a ``SandboxError``."""

    async def close(self) -> str | None:
        """End that. Returns the reason if it had ended before."""
        return None

    async def is_well(self, environment: Environment, call: Call) -> bool:
        """Whether a sandbox in which no block has run answers. Raises a ``SandboxError`` if it has ended."""
        return environment.sandbox is not None and environment.sandbox.running

    def take_over(self, other: AnyRunner) -> None:
        """Take what another runner has opened in the sandbox. It has nothing open afterwards."""

    @abstractmethod
    async def serve_processes(self, environment: Environment, user: str | None) -> ProcessServer:
        """Return the process server of a user; ``None`` is the code's user. The sandbox must be running.

        Raises a ``LookupError`` without such a user, and a ``SandboxError``.
        """

    async def finish(self) -> Sequence[str]:
        """End in order what a block has left running, if the blocks share anything. The caller holds the turns of blocks.

        Returns as :meth:`StreamingCodeExecutor.finish`.
        """
        return ()

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
        result: Result,
        tools: HostTools | None = None,
    ) -> Exit:
        """Run a program until it ends, or the call is stopped. What it makes beside its output is added to the result.

        Raises a ``SandboxError`` if nothing can run here at all.
        """


AnyRunner: TypeAlias = CodeRunner[Any, Any]

_TIMEOUT_EXIT_CODE = 124
"""The exit code of the ``timeout`` command, which AutoGen's executors report, too."""


def judge(
    ending: Exit, call: Call, sandbox: Sandbox | None, output: BoundedOutput, result: ExecutionResult
) -> str | None:
    """Note in the result how a block of the call has ended. Returns a remark for the output, if there is one."""
    result.exit_code = ending.code
    if ending.lost is not None:
        result.outcome = Outcome.LOST
    if call.exceeded is not None:
        return judge_exceeded(call.exceeded, result)
    if call.timed_out:
        result.exit_code, result.outcome = _TIMEOUT_EXIT_CODE, Outcome.TIMED_OUT
        result.limit = f"time (timeout: {call.seconds:g})"
        return f"Timeout: stopped after {call.seconds:g} s, the limit that `timeout` sets."
    if call.stop.cancelled():
        result.exit_code, result.outcome = 1, Outcome.CANCELLED
        return "Code execution was cancelled."
    if ending.lost is not None or ending.code == 0:
        return None
    if not ending.oom_kills and (module := missing_module(output.end())) is not None:
        result.missing_module = module
        is_closed = sandbox is not None and sandbox.way_out is None and Cause.NETWORK in sandbox.limits
        return remark(module, has_network=not is_closed)
    limit = limit_behind(ending, sandbox, output)
    if limit is not None and str(Cause.DISK) in limit and call.has_full_disk:
        return "The disk of the host that holds the workspace is full. This is not a limit of the sandbox."
    result.limit = limit
    return limit


def judge_exceeded(field: str, result: ExecutionResult) -> str:
    """Note in the result that it exceeds the quota of the workspace, the setting ``field``. Returns a remark for the output."""
    result.exit_code, result.missing_module = FILE_TOO_LARGE, None
    result.limit = limit_sentence(Cause.DISK, field)
    return f"{result.limit} Remove files that are not needed."


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
