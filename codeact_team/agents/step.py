"""The step that every agent here shares: approve, execute, observe."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing

from autogen_agentchat.agents import ApprovalFuncType, ApprovalRequest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from autogen_core.models import LLMMessage

from codeact_team.errors import SandboxError
from codeact_team.execution import ExecutionResult, Outcome, StreamingCodeExecutor
from codeact_team.observations import observe

logger = logging.getLogger(__name__)


async def run_step(
    executor: CodeExecutor,
    blocks: list[CodeBlock],
    *,
    approval: ApprovalFuncType | None,
    context: list[LLMMessage],
    cancellation_token: CancellationToken,
) -> AsyncGenerator[str | ExecutionResult, None]:
    """Ask for approval, run the blocks, and say how it went.

    Args:
        executor: Any AutoGen executor; one that streams is streamed.
        blocks: What to run.
        approval: Who approves; ``None`` where nobody is asked.
        context: The conversation, for whoever approves.
        cancellation_token: Stops the wait for approval and the execution.

    Yields:
        Chunks of output as they come, then the result as it is passed on.

    Raises:
        SandboxError: If no code can run here at all.
    """
    try:
        denial = await _denial(approval, blocks, context, cancellation_token)
        if denial is not None:
            yield denial
            return
        async with aclosing(_execute(executor, blocks, cancellation_token)) as items:
            async for item in items:
                yield observe(item) if isinstance(item, CodeResult) else item
    except asyncio.CancelledError:
        # the token cancels what it is linked to; a cancelled task has to stay cancelled
        if not cancellation_token.is_cancelled():
            raise
        yield ExecutionResult(exit_code=1, output="Code execution was cancelled.", outcome=Outcome.CANCELLED)


async def _denial(
    approval: ApprovalFuncType | None,
    blocks: Sequence[CodeBlock],
    context: list[LLMMessage],
    cancellation_token: CancellationToken,
) -> ExecutionResult | None:
    if approval is None:
        return None
    code = "\n\n".join(f"```{block.language}\n{block.code}\n```" for block in blocks)
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


async def _execute(
    executor: CodeExecutor, blocks: list[CodeBlock], cancellation_token: CancellationToken
) -> AsyncGenerator[str | CodeResult, None]:
    if isinstance(executor, StreamingCodeExecutor):
        async with aclosing(executor.execute_code_blocks_stream(blocks, cancellation_token)) as items:
            async for item in items:
                yield item
        return
    try:
        yield await executor.execute_code_blocks(blocks, cancellation_token=cancellation_token)
    except SandboxError:
        raise
    except Exception as error:
        # AutoGen lets its executors raise, for time-outs among others; a model can read that, a team only ends by it
        logger.warning("%s raised %r", type(executor).__name__, error)
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        yield ExecutionResult(
            exit_code=1, output=f"The code could not be run: {text}", outcome=Outcome.NOT_RUN
        )
