"""The executor interface that agents use, on top of AutoGen's ``CodeExecutor``.

Agents accept any AutoGen executor. One that is a :class:`StreamingCodeExecutor` also streams its output, says
which languages it runs, and tells more about a result than an exit code.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from pydantic import JsonValue

from codeact_team.aio import aclosing

Emit: TypeAlias = Callable[[str], Awaitable[None]]
"""Takes a piece of output as it comes; the code's output is not read on before it returns."""


class Outcome(StrEnum):
    """How the execution of some code blocks came to its end."""

    COMPLETED = "completed"
    """The code ran to its own end, with whatever exit code."""
    TIMED_OUT = "timed_out"
    """The time limit stopped it."""
    CANCELLED = "cancelled"
    """The caller stopped it."""
    DENIED = "denied"
    """It was not approved and did not run."""
    NOT_RUN = "not_run"
    """It could not be run: an unusable file name or an unknown language."""
    LOST = "lost"
    """The sandbox ended under it; the next call gets a fresh one."""


@dataclass
class ExecutionResult(CodeResult):
    """AutoGen's ``CodeResult`` with what else is known.

    Attributes:
        exit_code: 0 for success; of the last block that ran.
        output: What the blocks wrote, stdout and stderr in order, bounded; hostile data.
        outcome: How it ended.
        code_file: Host path of the first block's file where the workspace is a directory of the host; a name only,
            never to be opened without refusing symbolic links.
        limit: The limit that the code ran into, and the config field that sets it.
        omitted_bytes: How many bytes of output were dropped from the middle.
        seconds: Wall-clock time from the first block's start to the last block's end.
    """

    outcome: Outcome = Outcome.COMPLETED
    code_file: str | None = None
    limit: str | None = None
    omitted_bytes: int = 0
    seconds: float = 0.0


class StreamingCodeExecutor(CodeExecutor):
    """An AutoGen code executor that keeps the code in a sandbox, and whose output can be read while the code runs."""

    @property
    @abstractmethod
    def supported_languages(self) -> Sequence[str]:
        """The labels of the languages this executor runs."""

    @property
    @abstractmethod
    def loosenings(self) -> Sequence[str]:
        """Each setting that is weaker than the default, in words for the person who opens the team."""

    @abstractmethod
    def execute_code_blocks_stream(
        self,
        code_blocks: list[CodeBlock],
        cancellation_token: CancellationToken,
        *,
        user: object | None = None,
    ) -> AsyncGenerator[str | ExecutionResult, None]:
        """Run the blocks in order until one fails.

        Args:
            code_blocks: What to run.
            cancellation_token: Stops it, and the wait for its turn.
            user: Whose code it is, where several agents share the executor: any object that lives as long as the agent.
                Default: the executor's owner.

        Yields:
            Chunks of output as they come, then one :class:`ExecutionResult`.

        Raises:
            SandboxError: If no code can run here at all (no engine, no image, no confinement).
        """

    async def run_code_blocks(
        self,
        code_blocks: list[CodeBlock],
        cancellation_token: CancellationToken,
        *,
        user: object | None = None,
        emit: Emit | None = None,
    ) -> ExecutionResult:
        """Run the blocks in order until one fails, and return the result.

        Args:
            code_blocks: What to run.
            cancellation_token: Stops it, and the wait for its turn.
            user: Whose code it is; see :meth:`execute_code_blocks_stream`.
            emit: Gets the output as it comes. What it raises stops the code.

        Raises:
            SandboxError: If no code can run here at all (no engine, no image, no confinement).
        """
        return await _consume(
            self.execute_code_blocks_stream(code_blocks, cancellation_token, user=user), emit
        )

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> ExecutionResult:
        """Run the blocks in order until one fails, and return the result.

        Raises:
            SandboxError: If no code can run here at all (no engine, no image, no confinement).
        """
        return await self.run_code_blocks(code_blocks, cancellation_token)

    async def release(self, user: object) -> bool:
        """Let a user go who needs nothing any more of what their code has left behind.

        Restarts, unless code of another user has run since the last start. Waits until no block of others runs.

        Args:
            user: As given to :meth:`execute_code_blocks_stream`.

        Returns:
            Whether what the code has left behind is gone.

        Raises:
            SandboxError: If the sandbox cannot start again.
        """
        await self.restart()
        return True


async def _consume(stream: AsyncGenerator[str | ExecutionResult, None], emit: Emit | None) -> ExecutionResult:
    result: ExecutionResult | None = None
    async with aclosing(stream) as items:
        async for item in items:
            if isinstance(item, ExecutionResult):
                result = item
            elif emit is not None:
                await emit(item)
    assert result is not None, "a stream of output ends with its result"
    return result


@dataclass(frozen=True)
class BoundName:
    """A global name that a block has bound, or bound anew; hostile data.

    Attributes:
        name: The name.
        type: The name of its value's type, such as ``ndarray``.
        size: The value's shape or length in words, such as ``(3, 4)`` or ``10 items``, where it has one.
        preview: The beginning of what the value looks like, where that is known without running its code.
    """

    name: str
    type: str
    size: str | None = None
    preview: str | None = None


@dataclass(frozen=True)
class Artifact:
    """What a block has made beside text, such as a figure; hostile data.

    Attributes:
        mime_type: Such as ``image/png`` or ``text/html``.
        data: The bytes, as the code made them.
    """

    mime_type: str
    data: bytes


@dataclass
class SessionResult(ExecutionResult):
    """A result of code that runs in a living interpreter.

    Attributes:
        state_lost: Whether the interpreter that held the variables is gone; the next block gets a fresh one.
        names: The names bound by the blocks, at most a few dozen.
        omitted_names: How many more there were.
        artifacts: Figures, pictures and tables, in order.
        answer: What the code called ``final_answer`` with, as text; the first call counts. ``None`` if it did not.
        denied: Whether what ended the code was a call of a tool that was not approved, by the code's own account.
        output_file: The file of the workspace that has the whole output, where an agent has kept it there.
    """

    state_lost: bool = False
    names: list[BoundName] = field(default_factory=list[BoundName])
    omitted_names: int = 0
    artifacts: list[Artifact] = field(default_factory=list[Artifact])
    answer: str | None = None
    denied: bool = False
    output_file: str | None = None


class CallOutcome(StrEnum):
    """What became of the call of a tool."""

    OK = "ok"
    """The tool returned."""
    FAILED = "failed"
    """The tool had an error."""
    TIMED_OUT = "timed_out"
    """The tool's time limit stopped it."""
    DENIED = "denied"
    """It was not approved, and the tool was not called."""
    REFUSED = "refused"
    """The tool was not called: it is not offered, the arguments are wrong, or a limit is reached."""
    CANCELLED = "cancelled"
    """The block ended, or nobody waited for it any more."""


@dataclass(frozen=True)
class CallAnswer:
    """What the code gets for the call of a tool.

    Attributes:
        outcome: What became of it.
        content: What the tool returned: one value, or for MCP several pieces, media among them.
        error: What is wrong, in words for the model, unless the outcome is ``OK``.
    """

    outcome: CallOutcome = CallOutcome.OK
    content: Sequence[JsonValue | Artifact] = ()
    error: str = ""


class HostTools(ABC):
    """The functions of the host that the code of one execution may call, and what becomes of each call."""

    @property
    @abstractmethod
    def declarations(self) -> Sequence[Mapping[str, JsonValue]]:
        """What the sandbox is told of each, the same object as long as it is the same.

        ``name``: the dotted path below ``tools`` by which code calls it, at most two identifiers; ``doc``: its
        docstring; ``parameters``: a list of objects with ``name`` (an identifier), ``key`` (its name in the arguments),
        ``annotation`` (as it is shown), ``required``, ``default`` (a value, if it has one) and ``keyword_only``;
        ``returns``: an annotation or null; ``takes_others``: whether it may be called with other keywords, too.
        """

    @property
    @abstractmethod
    def max_parallel(self) -> int:
        """How many calls run at the same time."""

    @property
    def rights(self) -> object:
        """What agents must have alike, by ``==``, for their code to share an interpreter. Default: nobody has them."""
        return self

    @abstractmethod
    async def call(
        self,
        name: str,
        arguments: dict[str, JsonValue],
        *,
        pause: Callable[[], AbstractContextManager[None]],
    ) -> CallAnswer:
        """Call a tool. Whatever goes wrong is an answer; only a cancellation is raised.

        Args:
            name: As declared, if the code is honest.
            arguments: Unchecked.
            pause: Within it, as while a person is asked, time does not count against the block.
        """


class SessionCodeExecutor(StreamingCodeExecutor):
    """A code executor whose Python blocks share one living interpreter; its results are :class:`SessionResult`.

    One thing at a time: a file request waits until the stream of a block has been read to its end, or closed.
    """

    @abstractmethod
    def execute_code_blocks_stream(
        self,
        code_blocks: list[CodeBlock],
        cancellation_token: CancellationToken,
        *,
        user: object | None = None,
        tools: HostTools | None = None,
    ) -> AsyncGenerator[str | ExecutionResult, None]:
        """Run the blocks in order until one fails.

        A user whose variables are gone by a restart, a time-out or the like is told so in the output of their next
        block, and by ``state_lost``, whoever caused it.

        Args:
            code_blocks: What to run.
            cancellation_token: Stops it, and the wait for its turn.
            user: Whose code it is, where several agents share the executor: any object that lives as long as the agent.
                Default: the executor's owner.
            tools: What the Python code may call on the host. All calls have ended when a block has.

        Yields:
            Chunks of output as they come, then one :class:`SessionResult`.

        Raises:
            SettingError: If code of a user with other :attr:`HostTools.rights` has run in the interpreter.
            SandboxError: If no code can run here at all (no engine, no image, no confinement).
        """

    async def run_code_blocks(
        self,
        code_blocks: list[CodeBlock],
        cancellation_token: CancellationToken,
        *,
        user: object | None = None,
        tools: HostTools | None = None,
        emit: Emit | None = None,
    ) -> ExecutionResult:
        """Run the blocks in order until one fails, and return the result, a :class:`SessionResult`.

        Args:
            code_blocks: What to run.
            cancellation_token: Stops it, and the wait for its turn.
            user: Whose code it is; see :meth:`execute_code_blocks_stream`.
            tools: What the Python code may call on the host.
            emit: Gets the output as it comes. What it raises stops the code.

        Raises:
            SettingError: If code of a user with other :attr:`HostTools.rights` has run in the interpreter.
            SandboxError: If no code can run here at all (no engine, no image, no confinement).
        """
        return await _consume(
            self.execute_code_blocks_stream(code_blocks, cancellation_token, user=user, tools=tools), emit
        )

    @abstractmethod
    def add_setup(self, code: str) -> None:
        """Run Python ``code`` in the interpreter before the next block, and in each that replaces it.

        The same code is added once. Where it fails, whoever runs the next block gets a ``SettingError``.
        """

    @abstractmethod
    async def put_file(self, path: str, data: bytes | str, *, temporary: bool = False) -> None:
        """Write a file of the workspace; directories are made, and a link in its place is replaced.

        Args:
            path: Below the workspace.
            data: Its content, at most 64 MiB; text is written as UTF-8.
            temporary: Whether the file is removed when the executor stops; ``path`` is then a name alone.

        Raises:
            ValueError: If ``path`` is not below the workspace, or no name alone where it has to be, or there is too
                much data.
            OSError: If the sandbox cannot write it.
            SandboxError: If the sandbox cannot start.
        """

    @abstractmethod
    async def get_file(self, path: str) -> bytes:
        """Read a file of the workspace, of at most 64 MiB.

        Raises:
            ValueError: If ``path`` is not below the workspace.
            OSError: If the sandbox cannot read it, such as ``FileNotFoundError``, or it is too large.
            SandboxError: If the sandbox cannot start.
        """

    @abstractmethod
    async def list_files(self) -> dict[str, int]:
        """The files of the workspace with their sizes in bytes, at most 10,000, by path.

        Raises:
            SandboxError: If the sandbox cannot start.
        """
