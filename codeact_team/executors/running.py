"""What runs one code block after the other: output within bounds, stops, and results."""

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

from codeact_team.core.aio import Timer, to_the_end
from codeact_team.core.execution import ExecutionResult, HostTools, Outcome, missing_module, remark
from codeact_team.core.executor_interface import Emit
from codeact_team.executors.place import Place
from codeact_team.sandbox.base import Cause, Exit, Sandbox, diagnose, limit_sentence

T = TypeVar("T")


class Call:
    """One call of an executor: whose code runs, what it may use, and what stops it.

    Attributes:
        stop: Done once the code has to stop, for whatever reason; cancelled by whoever cancels the call.
        timed_out: Whether the reason is the time of a block.
        block_ended: Whether the present block has ended by itself, so that its time does not count any more.
        exceeded: The limit of the workspace that is the reason, by the config field that sets it.
    """

    def __init__(
        self, cancellation_token: CancellationToken, user: object, tools: HostTools | None, place: Place
    ) -> None:
        self.stop: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.user = user
        self.tools = tools
        self.timed_out = False
        self.block_ended = False
        self.exceeded: str | None = None
        self._place = place
        self._time: Timer | None = None
        self._next_look: asyncio.TimerHandle | None = None
        """When the workspace is looked at next."""
        self._looking: asyncio.Task[None] | None = None
        cancellation_token.link_future(self.stop)

    @property
    def deadline(self) -> float:
        """When the time of the present block is over, in seconds of the event loop's clock."""
        return self._timer.deadline

    def paused(self) -> AbstractContextManager[None]:
        """Within it, or several of it, the time of the present block does not run."""
        return self._timer.paused()

    def begin_block(self, seconds: float) -> None:
        """Give a block its time."""
        self.block_ended = False
        if self._time is None:
            self._look_in(self._place.growth.pause)
        else:
            self._time.close()
        self._time = Timer(asyncio.get_running_loop().time() + seconds, self._time_out)

    async def end(self) -> None:
        """Stop nothing any more; wait for a look at the workspace that is under way. Idempotent."""
        if self._time is None:
            return
        self._time.close()
        # it refers to this call: whoever is its user would live on with it
        self._time = None
        growth = self._place.growth
        if self._next_look is not None:
            self._next_look.cancel()
            # short calls add up
            growth.pause = max(0.0, self._next_look.when() - asyncio.get_running_loop().time())
        if self._looking is not None:
            await to_the_end(self._looking)
        if self.exceeded is not None:
            # what code has added while it was being ended is not the next block's
            await growth.look()

    @property
    def _timer(self) -> Timer:
        assert self._time is not None, "a block has begun"
        return self._time

    def _time_out(self) -> None:
        if not (self.block_ended or self.stop.done()):
            self.timed_out = True
            self.stop.set_result(None)

    def _look_in(self, seconds: float) -> None:
        self._next_look = asyncio.get_running_loop().call_later(seconds, self._begin_look)

    def _begin_look(self) -> None:
        self._next_look, self._looking = None, asyncio.ensure_future(self._look())

    async def _look(self) -> None:
        growth = self._place.growth
        self.exceeded = await growth.look()
        if self.exceeded is None:
            if self._time is not None:
                self._look_in(growth.pause)
        elif not self.stop.done():
            self.stop.set_result(None)


async def first(
    work: Coroutine[Any, Any, T],
    stop: asyncio.Future[None] | None,
    deadline: float | None = None,
    *,
    undo: Callable[[T], Awaitable[None]] | None = None,
) -> T | None:
    """The result of ``work``; ``None`` if ``stop`` or the deadline, in the loop's seconds, comes first.

    ``undo`` is called with a result that the caller never gets, as they are cancelled in the moment in which it comes.
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
"""How much output of one call is kept, in bytes; more is cut in the middle. What is passed on is not cut."""


class BoundedOutput:
    """What the blocks of one call wrote. Keeps the first and the last half of ``limit`` bytes.

    Args:
        emit: Gets the text as it comes.
        limit: How many bytes to keep.
    """

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
        """Take in ``data``, and pass it on; a character that is not complete yet goes with the next piece."""
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
        """Add a remark of ours, on a line of its own."""
        end = self.end(1)
        await self.write((f"\n{text}" if end and end != "\n" else text).encode())

    async def finish(self) -> None:
        """Pass on what was held back of a character that is never completed."""
        if self._decoder is not None:
            await self._pass_on(self._decoder.decode(b"", final=True))

    def text(self) -> str:
        """All that was kept, with a remark where something was cut."""
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
        exit: Its exit code, why what blocks leave behind for others is lost, if it is, and what the kernel counted.
        ran: Whether it began to run.
        sandbox_lives: Whether it is known that the sandbox goes on, even where an interpreter is lost.
    """

    exit: Exit
    ran: bool = True
    sandbox_lives: bool = False


@dataclass(frozen=True)
class Setup:
    """A block that runs before all others, wherever what blocks leave behind is new."""

    block: CodeBlock
    failure: str
    """What to say before its output if it fails."""
    may_read_data: bool = True
    """Whether it may read what a person gives to the code, besides modules that are there."""


Program = TypeVar("Program")
End = TypeVar("End", bound=BlockEnd)


class CodeRunner(ABC, Generic[Program, End]):
    """How code runs in the sandbox of a place."""

    lives_on: bool
    """Whether Python blocks share an interpreter."""
    loss: str
    """What the model is told when what blocks leave behind for others is lost: ``{}`` stands for the reason."""
    loss_before: str | None = None
    """The same, where it was lost after a user's last block and before the next; ``None`` if that is not told."""

    def __init__(self, languages: Iterable[str]) -> None:
        self.languages = tuple(languages)
        self.setup: list[Setup] = []

    @property
    def interpreter(self) -> int | None:
        """The number of the interpreter that lives on between blocks, as was heard last; ``None`` if there is none."""
        return 0

    @property
    def interpreter_loss(self) -> str:
        """Why the interpreter before that one is gone."""
        return ""

    async def open(self, place: Place) -> None:
        """Start, in a sandbox that runs, what all blocks need, unless it is there.

        Raises:
            SandboxError: If it cannot start.
        """

    async def close(self) -> str | None:
        """End that; the reason why it has ended before, if it has."""
        return None

    async def is_well(self, place: Place, call: Call) -> bool:
        """Whether what runs in a sandbox, in which no block of anybody's has run, answers; the call stops asking.

        Raises:
            SandboxError: If it does not.
        """
        return place.sandbox is not None and await place.sandbox.answers()

    def take_over(self, other: AnyRunner) -> None:
        """Have what another one has opened in a sandbox that this one has now; the other has nothing afterwards."""

    async def renew(self, place: Place, *, in_use: bool) -> None:
        """End all that blocks have left behind; if ``in_use``, while one may run."""
        if place.sandbox is not None:
            await to_the_end(place.sandbox.stop())

    @abstractmethod
    def read(self, block: CodeBlock) -> Program:
        """What is to be run.

        Raises:
            BlockError: If nothing can be.
        """

    def read_setup(self, setup: Setup) -> Program:
        """What is to be run for a piece of the setup."""
        return self.read(setup.block)

    @abstractmethod
    async def run(
        self,
        program: Program,
        place: Place,
        call: Call,
        output: BoundedOutput,
        tools: HostTools | None = None,
    ) -> End:
        """Run it until it ends, or until the call is stopped.

        Raises:
            SandboxError: If nothing can run here at all.
        """

    @abstractmethod
    def result(self, ends: Sequence[End], *, state_lost: bool) -> ExecutionResult:
        """What is known of a call by how its blocks ended, in order."""


AnyRunner: TypeAlias = CodeRunner[Any, Any]

TIMEOUT_EXIT_CODE = 124
"""What the ``timeout`` command exits with, and AutoGen's executors report."""
CANCELLED_EXIT_CODE = 1
LOST_EXIT_CODE = 128 + 9
DISK_EXIT_CODE = 128 + 25
"""As of a program that the kernel ends for the size of a file."""


@dataclass(slots=True)
class BlockResult:
    """What became of a block; of the last one, this is the result of the call."""

    exit_code: int = 0
    outcome: Outcome = Outcome.COMPLETED
    limit: str | None = None
    remark: str | None = None
    """What the output has to say of it."""
    state_lost: bool = False
    """Whether what blocks leave behind is lost, or was before."""
    end: BlockEnd | None = None
    """How it ended; ``None`` where it never began."""
    missing_module: str | None = None
    """The Python module whose absence ended it."""


def judge(
    ending: Exit, call: Call, sandbox: Sandbox | None, output: BoundedOutput, timeout: int
) -> BlockResult:
    """What became of a block of the call, which had ``timeout`` seconds and ended like that."""
    if call.exceeded is not None:
        return exceeded(call.exceeded, Outcome.COMPLETED if ending.lost is None else Outcome.LOST)
    if call.timed_out:
        words = f"Timeout: stopped after {timeout} s, the limit that `timeout` sets."
        return BlockResult(TIMEOUT_EXIT_CODE, Outcome.TIMED_OUT, f"time (timeout: {timeout})", words)
    if call.stop.cancelled():
        return BlockResult(CANCELLED_EXIT_CODE, Outcome.CANCELLED, remark="Code execution was cancelled.")
    if ending.lost is not None:
        return BlockResult(ending.code, Outcome.LOST)
    if ending.code == 0:
        return BlockResult()
    if not ending.oom_kills and (module := missing_module(output.end())) is not None:
        has_network = sandbox is None or Cause.NETWORK not in sandbox.limits
        words = remark(module, has_network=has_network)
        return BlockResult(ending.code, missing_module=module, remark=words)
    limit = limit_behind(ending, sandbox, output)
    return BlockResult(ending.code, limit=limit, remark=limit)


def exceeded(field: str, outcome: Outcome = Outcome.COMPLETED) -> BlockResult:
    """The workspace has grown too much, by the limit that ``field`` sets."""
    limit = limit_sentence(Cause.DISK, field)
    return BlockResult(DISK_EXIT_CODE, outcome, limit, f"{limit} Remove files that are not needed.")


def limit_behind(ending: Exit, sandbox: Sandbox | None, output: BoundedOutput) -> str | None:
    """Which limit of the sandbox ended a block like that, if one did."""
    if sandbox is None:
        return None
    return diagnose(
        sandbox.limits,
        exit_code=ending.code,
        output=output.end(),
        oom_kills=ending.oom_kills,
        fork_failures=ending.fork_failures,
    )
