"""The step that every agent here shares: approve, execute, observe."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing, asynccontextmanager

from autogen_agentchat.agents import ApprovalFuncType, ApprovalRequest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from autogen_core.models import LLMMessage

from codeact_team.errors import CodeActTeamError
from codeact_team.execution import ExecutionResult, Outcome, StreamingCodeExecutor
from codeact_team.observations import observe

logger = logging.getLogger(__name__)

_TIMEOUT_EXIT_CODE = 124
"""What the ``timeout`` command exits with."""
_CANCELLED = "Code execution was cancelled."


async def run_step(
    executor: CodeExecutor,
    blocks: list[CodeBlock],
    *,
    approval: ApprovalFuncType | None,
    context: list[LLMMessage],
    cancellation_token: CancellationToken,
) -> AsyncGenerator[str | ExecutionResult, None]:
    """Ask for approval, run the blocks, and say how it went, as it is passed on.

    Arguments, chunks and errors are those of :func:`perform`; the result is observed.
    """
    step = perform(
        executor, blocks, approval=approval, context=context, cancellation_token=cancellation_token
    )
    async with aclosing(step) as items:
        async for item in items:
            yield observe(item) if isinstance(item, CodeResult) else item


async def perform(
    executor: CodeExecutor,
    blocks: list[CodeBlock],
    *,
    approval: ApprovalFuncType | None,
    context: list[LLMMessage],
    cancellation_token: CancellationToken,
) -> AsyncGenerator[str | CodeResult, None]:
    """Ask for approval, and run the blocks.

    Args:
        executor: Any AutoGen executor; one that streams is streamed.
        blocks: What to run.
        approval: Who approves; ``None`` where nobody is asked.
        context: The conversation, for whoever approves.
        cancellation_token: Stops the wait for approval and the execution.

    Yields:
        Chunks of output as they come, then the result as the executor gave it.

    Raises:
        SandboxError: If no code can run here at all.
        SettingError: If that is because of a setting of the executor.
    """
    try:
        _raise_if_cancelled(cancellation_token)
        denial = await _denial(approval, blocks, context, cancellation_token)
        if denial is not None:
            yield denial
            return
        _raise_if_cancelled(cancellation_token)
        async with aclosing(_execute(executor, blocks, cancellation_token)) as items:
            async for item in items:
                yield item
    except asyncio.CancelledError:
        # the token cancels what it is linked to; a task that was itself cancelled has to stay so
        task = asyncio.current_task()
        if not cancellation_token.is_cancelled() or (task is not None and task.cancelling()):
            raise
        yield ExecutionResult(exit_code=1, output=_CANCELLED, outcome=Outcome.CANCELLED)


@asynccontextmanager
async def warming_up(executor: CodeExecutor) -> AsyncGenerator[None]:
    """Start the executor, where it is a sandbox, while the model is writing."""
    if not isinstance(executor, StreamingCodeExecutor):
        yield
        return
    starting = asyncio.ensure_future(executor.start())
    try:
        yield
    finally:
        # whatever went wrong with it was raised by the first execution
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)


def _raise_if_cancelled(cancellation_token: CancellationToken) -> None:
    if cancellation_token.is_cancelled():
        raise asyncio.CancelledError


async def _denial(
    approval: ApprovalFuncType | None,
    blocks: Sequence[CodeBlock],
    context: list[LLMMessage],
    cancellation_token: CancellationToken,
) -> ExecutionResult | None:
    if approval is None:
        return None
    code = "\n\n".join(_fenced(block) for block in blocks)
    try:
        answer = approval(ApprovalRequest(code=code, context=context))
        if isinstance(answer, Awaitable):
            waiting = asyncio.ensure_future(answer)
            cancellation_token.link_future(waiting)
            answer = await waiting
        approved, reason = answer.approved, answer.reason
    except Exception as error:
        logger.exception("the approval function failed, so the code is not run")
        approved, reason = False, f"the approval function failed: {type(error).__name__}: {error}"
    if approved:
        return None
    return ExecutionResult(
        exit_code=1, output=f"Code execution was not approved. Reason: {reason}", outcome=Outcome.DENIED
    )


def _fenced(block: CodeBlock) -> str:
    """The block for review: code that holds a fence must not look as if it ended there."""
    longest = max((len(run) for run in re.findall("`+", block.code)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{block.language}\n{block.code}\n{fence}"


async def _execute(
    executor: CodeExecutor, blocks: list[CodeBlock], cancellation_token: CancellationToken
) -> AsyncGenerator[str | CodeResult, None]:
    try:
        if isinstance(executor, StreamingCodeExecutor):
            item = None
            async with aclosing(executor.execute_code_blocks_stream(blocks, cancellation_token)) as items:
                async for item in items:
                    yield item
            assert isinstance(item, CodeResult), "a stream of output ends with its result"
        else:
            result = await executor.execute_code_blocks(blocks, cancellation_token=cancellation_token)
            yield _cancelled(result) if cancellation_token.is_cancelled() else result
    except CodeActTeamError:
        raise
    except Exception as error:
        # AutoGen lets its executors raise, for time-outs among others; a model can read that, a team only ends by it
        logger.warning("%s raised %r", type(executor).__name__, error)
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if isinstance(error, TimeoutError):
            yield ExecutionResult(exit_code=_TIMEOUT_EXIT_CODE, output=text, outcome=Outcome.TIMED_OUT)
        else:
            failure = f"The code could not be run: {text}"
            yield ExecutionResult(exit_code=1, output=failure, outcome=Outcome.NOT_RUN)


def _cancelled(result: CodeResult) -> CodeResult:
    """The result of an executor that does not raise when it is cancelled, as AutoGen's for Docker."""
    if result.exit_code == 0:
        return result
    return ExecutionResult(
        exit_code=result.exit_code, output=result.output or _CANCELLED, outcome=Outcome.CANCELLED
    )
