"""Stopping a turn: by the token, by cancelling the task, by leaving the stream."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.agents import ApprovalRequest, ApprovalResponse
from autogen_agentchat.base import Response
from autogen_agentchat.messages import CodeExecutionEvent, ModelClientStreamingChunkEvent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeResult
from support.agents import (
    FAILS,
    PRINTS_42,
    RETRY,
    TASK,
    Calling,
    Foreign,
    Item,
    answer,
    calls_of,
    confined,
    record_of,
    replay,
    turn,
    user,
    yes,
)
from support.openai_server import Json, ScriptedServer, Slow, Text
from support.waiting import first_tick, ticking

from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.core.execution import Outcome

CANCELLED = "Code execution was cancelled."
ERROR = CodeResult(exit_code=1, output="ZeroDivisionError\n")
TICKS = """Here:
```python
import pathlib, time
print("started", flush=True)
for number in range(1000):
    pathlib.Path("tick").write_text(str(number))
    time.sleep(0.02)
```
"""


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


@pytest.mark.parametrize("reflect", [True, False])
async def test_a_cancelled_execution_is_the_end_of_the_turn(tmp_path: Path, reflect: bool):
    # a cancelled execution counted as a code error: the model was asked, and code ran again
    token = CancellationToken()
    async with ScriptedServer([Text(TICKS)]) as server, confined(tmp_path) as executor:
        agent = CodeExecutorAgent(
            "executor",
            executor,
            model_client=server.client(),
            max_retries_on_error=5,
            reflect=reflect,
            stream_output=True,
        )
        items: list[Item] = []
        cancelled_at = 0.0
        async for item in agent.on_messages_stream([user(TASK)], token):
            items.append(item)
            if isinstance(item, ModelClientStreamingChunkEvent) and not cancelled_at:
                cancelled_at = time.monotonic()
                token.cancel()
        assert time.monotonic() - cancelled_at < 2
        assert not await ticking(tmp_path)
    final = items[-1]
    assert isinstance(final, Response)
    text = final.chat_message.to_text()
    assert text.startswith("started"), "what the code wrote before is not lost"
    assert text.endswith(CANCELLED)
    assert record_of(final.chat_message).outcome is Outcome.CANCELLED
    assert len([item for item in items if isinstance(item, CodeExecutionEvent)]) == 1
    assert len(server.requests) == 1


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


@pytest.mark.parametrize("number", range(4), ids=["generation", "decision", "regeneration", "reflection"])
async def test_every_call_to_the_model_can_be_cancelled(number: int):
    # the retry decision and the reflection could not
    replies: list[Any] = [Text(FAILS), Json(RETRY), Text(PRINTS_42), Text("It is 42.")]
    replies[number:] = [Slow(30, Text("too late"))]
    executor, token = Foreign(ERROR), CancellationToken()
    async with ScriptedServer(replies) as server:
        agent = CodeExecutorAgent(
            "executor", executor, model_client=server.client(), max_retries_on_error=3, approval_func=yes
        )
        running = asyncio.ensure_future(turn(agent, token=token))
        await server.wait_until(lambda server: len(server.requests) == number + 1)
        token.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await server.wait_until(lambda server: server.disconnects == 1)
    assert len(executor.executed) == (number + 1) // 2


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


async def test_waiting_for_approval_can_be_cancelled():
    asked = asyncio.Event()

    async def undecided(request: ApprovalRequest) -> ApprovalResponse:
        asked.set()
        await asyncio.sleep(30)
        return yes(request)

    executor, token = Foreign(), CancellationToken()
    agent = CodeExecutorAgent("executor", executor, approval_func=undecided)
    running = asyncio.ensure_future(answer(agent, user(PRINTS_42), token=token))
    await asked.wait()
    token.cancel()
    async with asyncio.timeout(5):
        message = await running
    assert (message.content, executor.executed) == (CANCELLED, [])


async def test_code_is_not_run_if_the_answer_was_yes_but_came_with_a_cancellation():
    token = CancellationToken()

    def approve(request: ApprovalRequest) -> ApprovalResponse:
        token.cancel()
        return yes(request)

    executor = Foreign()
    message = await answer(
        CodeExecutorAgent("executor", executor, approval_func=approve), user(PRINTS_42), token=token
    )
    assert (message.content, executor.executed) == (CANCELLED, [])


@pytest.mark.parametrize("and_the_token", [False, True])
async def test_a_cancelled_task_stops_the_code_and_stays_cancelled(tmp_path: Path, and_the_token: bool):
    token = CancellationToken()
    async with confined(tmp_path) as executor:
        agent = CodeExecutorAgent("executor", executor)
        running = asyncio.ensure_future(turn(agent, user(TICKS), token=token))
        await first_tick(tmp_path)
        if and_the_token:
            token.cancel()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not await ticking(tmp_path)


async def test_leaving_the_stream_stops_the_code(tmp_path: Path):
    async with confined(tmp_path) as executor:
        agent = CodeExecutorAgent("executor", executor, stream_output=True)
        items = agent.on_messages_stream([user(TICKS)], CancellationToken())
        async for item in items:
            assert isinstance(item, ModelClientStreamingChunkEvent)
            await asyncio.sleep(0.1)
            break
        await items.aclose()
        assert not await ticking(tmp_path)


async def test_the_conversation_goes_on_after_a_cancellation():
    token = CancellationToken()
    executor, client = Calling(linked), replay(PRINTS_42, "It was stopped.")
    agent = CodeExecutorAgent("executor", executor, model_client=client, approval_func=yes)
    running = asyncio.ensure_future(turn(agent, token=token))
    await executor.started.wait()
    token.cancel()
    await running
    assert (await answer(agent, user("What happened?"))).content == "It was stopped."
    seen = [str(message.content) for message in client.create_calls[-1]["messages"][1:]]
    assert seen == [TASK, PRINTS_42, f"<output>\n{CANCELLED}\n</output>", "What happened?"]


async def test_a_cancelled_team_asks_no_model_and_runs_no_code_any_more(tmp_path: Path):
    token = CancellationToken()
    async with ScriptedServer([Text(TICKS)]) as server, confined(tmp_path) as executor:
        agent = CodeExecutorAgent(
            "executor",
            executor,
            model_client=server.client(),
            max_retries_on_error=3,
            stream_output=True,
        )
        team = RoundRobinGroupChat([agent], max_turns=3)
        running = asyncio.ensure_future(team.run(task=TASK, cancellation_token=token))
        await first_tick(tmp_path)
        token.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not await ticking(tmp_path)
        assert len(server.requests) == 1


async def test_a_turn_without_code_does_not_wait_for_the_executor_to_start(tmp_path: Path):
    async with confined(tmp_path) as executor:
        agent = CodeExecutorAgent("executor", executor, model_client=replay("I know: 42.", PRINTS_42, "42!"))
        assert (await answer(agent)).content == "I know: 42."
        assert (await answer(agent)).content == "42!", "a start that was cut short harms nothing"
