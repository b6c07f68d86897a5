"""The step that every agent here shares: approve, execute, observe."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

from autogen_agentchat.agents import ApprovalFuncType, ApprovalRequest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from autogen_core.models import LLMMessage

from codeact_team.agents.tool_use import TurnTools
from codeact_team.aio import until_cancelled
from codeact_team.errors import CodeActTeamError
from codeact_team.execution import (
    ExecutionResult,
    Outcome,
    SessionCodeExecutor,
    SessionResult,
    StreamingCodeExecutor,
)
from codeact_team.observations import observe

logger = logging.getLogger(__name__)

_TIMEOUT_EXIT_CODE = 124
"""What the ``timeout`` command exits with."""
_CANCELLED = "Code execution was cancelled."


async def run_step(
    executor: CodeExecutor,
    blocks: list[CodeBlock],
    *,
    tools: TurnTools,
    approval: ApprovalFuncType | None,
    context: list[LLMMessage],
    cancellation_token: CancellationToken,
) -> AsyncGenerator[str | ExecutionResult, None]:
    """Ask for approval, run the blocks, and say how it went, as it is passed on.

    Arguments, chunks and errors are those of :func:`perform`; the result is observed.
    """
    step = perform(
        executor,
        blocks,
        tools=tools,
        approval=approval,
        context=context,
        cancellation_token=cancellation_token,
    )
    async with aclosing(step) as items:
        async for item in items:
            yield observe(item) if isinstance(item, CodeResult) else item


async def perform(
    executor: CodeExecutor,
    blocks: list[CodeBlock],
    *,
    tools: TurnTools,
    approval: ApprovalFuncType | None,
    context: list[LLMMessage],
    cancellation_token: CancellationToken,
) -> AsyncGenerator[str | CodeResult, None]:
    """Ask for approval, and run the blocks.

    Args:
        executor: Any AutoGen executor; one that streams is streamed.
        blocks: What to run.
        tools: What the code may call on the host, and the rules for its approval.
        approval: Who approves beside the rules; ``None`` where nobody is asked.
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
        denial = await _denial(tools, approval, blocks, context, cancellation_token)
        if denial is not None:
            yield denial
            return
        _raise_if_cancelled(cancellation_token)
        async with aclosing(_execute(executor, blocks, tools, cancellation_token)) as items:
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
    tools: TurnTools,
    approval: ApprovalFuncType | None,
    blocks: Sequence[CodeBlock],
    context: list[LLMMessage],
    cancellation_token: CancellationToken,
) -> ExecutionResult | None:
    code = "\n\n".join(_fenced(block) for block in blocks)
    reason = await until_cancelled(tools.denial_of(blocks), cancellation_token)
    if reason is None and approval is not None:
        reason = await _refusal_by(approval, ApprovalRequest(code=code, context=context), cancellation_token)
    if reason is None:
        return None
    return ExecutionResult(
        exit_code=1, output=f"Code execution was not approved. Reason: {reason}", outcome=Outcome.DENIED
    )


async def _refusal_by(
    approval: ApprovalFuncType, request: ApprovalRequest, cancellation_token: CancellationToken
) -> str | None:
    """Why AutoGen's approval function is against it, or ``None`` if it is not."""
    try:
        answer = approval(request)
        if isinstance(answer, Awaitable):
            answer = await until_cancelled(answer, cancellation_token)
        return None if answer.approved else answer.reason
    except Exception as error:
        logger.exception("the approval function failed, so the code is not run")
        return f"the approval function failed: {type(error).__name__}: {error}"


def _fenced(block: CodeBlock) -> str:
    """The block for review: code that holds a fence must not look as if it ended there."""
    longest = max((len(run) for run in re.findall("`+", block.code)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{block.language}\n{block.code}\n{fence}"


async def _execute(
    executor: CodeExecutor, blocks: list[CodeBlock], tools: TurnTools, cancellation_token: CancellationToken
) -> AsyncGenerator[str | CodeResult, None]:
    try:
        if isinstance(executor, StreamingCodeExecutor):
            item = None
            denials = tools.denials
            if isinstance(executor, SessionCodeExecutor) and tools:
                stream = executor.execute_code_blocks_stream(blocks, cancellation_token, tools=tools)
            else:
                stream = executor.execute_code_blocks_stream(blocks, cancellation_token)
            async with aclosing(stream) as items:
                async for item in items:
                    # the code may say so without any reason to
                    if isinstance(item, SessionResult) and item.denied and tools.denials > denials:
                        item = replace(item, outcome=Outcome.DENIED)
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
