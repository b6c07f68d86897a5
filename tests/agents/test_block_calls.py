from __future__ import annotations

import asyncio
from typing import Any

import pytest
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor, CodeResult
from autogen_core.models import LLMMessage
from support.agents import Calling, Foreign, Streaming

from codeact_team.agents.agent_config import ToolLimits
from codeact_team.agents.block_calls import run_blocks
from codeact_team.agents.tool_calls import NO_TOOLS, TurnTools
from codeact_team.core.execution import ExecutionResult
from codeact_team.errors import EngineError, SettingError
from codeact_team.tools.approvals import Approvals

BLOCKS = [CodeBlock(code="print(42)", language="python"), CodeBlock(code="echo 42", language="sh")]


def no_tools() -> TurnTools:
    return TurnTools("agent", NO_TOOLS, ToolLimits(), Approvals([], None, "agent"), CancellationToken())


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
