from __future__ import annotations

import asyncio
from typing import Any

import pytest
from autogen_agentchat.agents import ApprovalRequest, ApprovalResponse
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from autogen_core.models import LLMMessage, UserMessage
from support.agents import Calling, Foreign, Streaming, no, yes

from codeact_team.agents.agent_config import ToolLimits
from codeact_team.agents.block_calls import run_blocks
from codeact_team.agents.tool_calls import TurnTools
from codeact_team.core.execution import ExecutionResult, Outcome
from codeact_team.errors import EngineError, SettingError
from codeact_team.tools.approvals import Approvals

BLOCKS = [CodeBlock(code="print(42)", language="python"), CodeBlock(code="echo 42", language="sh")]


def no_tools() -> TurnTools:
    return TurnTools("agent", None, ToolLimits(), Approvals([], None, "agent"), CancellationToken())


async def stepped(
    executor: CodeExecutor,
    *,
    approval: Any = None,
    context: list[LLMMessage] | None = None,
    token: CancellationToken | None = None,
) -> list[str | ExecutionResult]:
    chunks: list[str] = []

    async def emit(chunk: str) -> None:
        chunks.append(chunk)

    result = await run_blocks(
        executor,
        BLOCKS,
        tools=no_tools(),
        approval=approval,
        context=context or [],
        cancellation_token=token or CancellationToken(),
        emit=emit,
    )
    return [*chunks, result]


async def test_a_plain_result_becomes_one_that_says_more():
    assert await stepped(Foreign()) == [ExecutionResult(exit_code=0, output="42\n")]


async def test_chunks_come_before_the_result():
    result = ExecutionResult(exit_code=0, output="42\n", seconds=0.5, omitted_bytes=3, limit="time")
    assert await stepped(Streaming("4", "2\n", result)) == ["4", "2\n", result]


async def test_all_blocks_are_shown_and_the_conversation_with_them():
    requests: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> ApprovalResponse:
        requests.append(request)
        return yes(request)

    context: list[LLMMessage] = [UserMessage(content="Go.", source="user")]
    executor = Foreign()
    await stepped(executor, approval=approve, context=context)
    assert requests == [
        ApprovalRequest(code="```python\nprint(42)\n```\n\n```sh\necho 42\n```", context=context)
    ]
    assert executor.executed == BLOCKS


async def test_a_denial_is_the_result_and_nothing_runs():
    executor = Foreign()
    text = "Code execution was not approved. Reason: too risky"
    assert await stepped(executor, approval=no) == [
        ExecutionResult(exit_code=1, output=text, outcome=Outcome.DENIED)
    ]
    assert executor.executed == []


async def test_output_before_an_error_of_the_executor_is_still_streamed():
    chunk, result = await stepped(Streaming("4", OSError("pipe")))
    assert chunk == "4"
    assert isinstance(result, ExecutionResult)
    assert (result.outcome, result.output) == (Outcome.NOT_RUN, "The code could not be run: OSError: pipe")


@pytest.mark.parametrize("error", [EngineError("no engine"), SettingError("wrong")])
@pytest.mark.parametrize("kind", [Foreign, Streaming])
async def test_what_is_wrong_with_the_surroundings_is_raised(kind: Any, error: Exception):
    with pytest.raises(type(error), match=str(error)):
        await stepped(kind(error))


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
async def test_what_is_no_ordinary_error_is_raised(error: BaseException):
    async def work(token: CancellationToken) -> CodeResult:
        raise error

    with pytest.raises(type(error)):
        await stepped(Calling(work))


async def test_a_cancellation_that_is_not_the_tokens_is_raised():
    async def work(token: CancellationToken) -> CodeResult:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await stepped(Calling(work))


async def test_the_result_of_a_cancelled_executor_keeps_its_output():
    token = CancellationToken()

    async def work(token: CancellationToken) -> CodeResult:
        token.cancel()
        return CodeResult(exit_code=1, output="half-way\nCode execution was cancelled.")

    assert await stepped(Calling(work), token=token) == [
        ExecutionResult(
            exit_code=1, output="half-way\nCode execution was cancelled.", outcome=Outcome.CANCELLED
        )
    ]
