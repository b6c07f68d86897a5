"""The executor interface that agents use, on top of AutoGen's ``CodeExecutor``.

Agents accept any AutoGen executor. One that is a :class:`StreamingCodeExecutor` also streams its output, says
which languages it runs, and tells more about a result than an exit code.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult


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
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> AsyncGenerator[str | ExecutionResult, None]:
        """Run the blocks in order until one fails.

        Yields:
            Chunks of output as they come, then one :class:`ExecutionResult`.

        Raises:
            SandboxError: If no code can run here at all (no engine, no image, no confinement).
        """

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> ExecutionResult:
        """Run the blocks in order until one fails, and return the result.

        Raises:
            SandboxError: If no code can run here at all (no engine, no image, no confinement).
        """
        result: ExecutionResult | None = None
        async for item in self.execute_code_blocks_stream(code_blocks, cancellation_token):
            if isinstance(item, ExecutionResult):
                result = item
        assert result is not None, "a stream of output ends with its result"
        return result
