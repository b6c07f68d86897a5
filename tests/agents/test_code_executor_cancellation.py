"""Stopping a turn: by the token, by cancelling the task, by leaving the stream."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from autogen_agentchat.agents import ApprovalRequest, ApprovalResponse
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeResult
from support.agents import (
    PRINTS_42,
    Calling,
    Foreign,
    answer,
    calls_of,
    confined,
    record_of,
    replay,
    user,
    yes,
)

from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.core.execution import Outcome

CANCELLED = "Code execution was cancelled."


async def linked(token: CancellationToken) -> CodeResult:
    """As AutoGen's local executor: what it waits for is linked to the token."""
    waiting = asyncio.ensure_future(asyncio.sleep(30))
    token.link_future(waiting)
    await waiting
    return CodeResult(exit_code=0, output="")


async def returning(token: CancellationToken) -> CodeResult:
    """As AutoGen's executor for Docker: the cancellation is a plain result."""
    try:
        return await linked(token)
    except asyncio.CancelledError:
        return CodeResult(exit_code=1, output=CANCELLED)


async def finishing(token: CancellationToken) -> CodeResult:
    """The code is done in the very moment."""
    try:
        return await linked(token)
    except asyncio.CancelledError:
        return CodeResult(exit_code=0, output="42\n")


@pytest.mark.parametrize("work", [linked, returning])
async def test_so_is_that_of_an_executor_which_raises_and_of_one_which_returns(
    work: Callable[[CancellationToken], Awaitable[CodeResult]],
):
    executor, token, client = Calling(work), CancellationToken(), replay(PRINTS_42, "never", "said")
    agent = CodeExecutorAgent(
        "executor", executor, model_client=client, max_retries_on_error=2, approval_func=yes
    )
    running = asyncio.ensure_future(answer(agent, token=token))
    await executor.started.wait()
    token.cancel()
    message = await running
    assert (message.content, record_of(message).outcome) == (CANCELLED, Outcome.CANCELLED)
    assert (calls_of(client), len(executor.executed)) == (1, 1)


async def test_code_that_is_done_in_the_moment_of_the_cancellation_keeps_its_result():
    executor, token, client = Calling(finishing), CancellationToken(), replay(PRINTS_42, "never said")
    agent = CodeExecutorAgent("executor", executor, model_client=client, approval_func=yes)
    running = asyncio.ensure_future(answer(agent, token=token))
    await executor.started.wait()
    token.cancel()
    message = await running
    assert (message.content, record_of(message).outcome) == ("42\n", Outcome.COMPLETED)
    assert calls_of(client) == 1


async def test_a_call_that_was_cancelled_before_it_began_does_nothing():
    asked: list[ApprovalRequest] = []

    def approve(request: ApprovalRequest) -> ApprovalResponse:
        asked.append(request)
        return yes(request)

    token = CancellationToken()
    token.cancel()
    executor = Foreign()
    agent = CodeExecutorAgent("executor", executor, approval_func=approve)
    message = await answer(agent, user(PRINTS_42), token=token)
    assert (message.content, executor.executed, asked) == (CANCELLED, [], [])


async def test_a_turn_without_code_does_not_wait_for_the_executor_to_start(tmp_path: Path):
    async with confined(tmp_path) as executor:
        agent = CodeExecutorAgent("executor", executor, model_client=replay("I know: 42.", PRINTS_42, "42!"))
        assert (await answer(agent)).content == "I know: 42."
        assert (await answer(agent)).content == "42!", "a start that was cut short harms nothing"
