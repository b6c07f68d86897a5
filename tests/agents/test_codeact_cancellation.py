"""Stopping a run at any moment: by the token, by cancelling the task, by leaving the stream."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.agents import ApprovalRequest, ApprovalResponse
from autogen_agentchat.messages import (
    CodeExecutionEvent,
    CodeGenerationEvent,
    ModelClientStreamingChunkEvent,
)
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import CancellationToken
from support.agents import RETRY, TASK, answer, calls_of, contents, no, record_of, replay, turn, user, yes
from support.codeact import agent_of, outputs, own_session, py
from support.openai_server import Json, ScriptedServer, Slow, Text
from support.waiting import first_tick, ticking

from codeact_team.agents.codeact.agent import CodeActAgent
from codeact_team.agents.observations import Ending
from codeact_team.core.execution import Outcome
from codeact_team.executors.confined import ConfinedSessionCodeExecutor

Session = ConfinedSessionCodeExecutor

TICKS = py(
    "import pathlib, time\nprint('started')\nfor number in range(10_000):\n"
    "    pathlib.Path('tick').write_text(str(number))\n    time.sleep(0.02)"
)
CANCELLED = "Code execution was cancelled."


async def said_in(agent: CodeActAgent) -> list[str]:
    return [str(message.content) for message in await agent.model_context.get_messages()]


async def test_a_cancelled_execution_is_the_end_of_the_run_and_no_model_is_asked(tmp_path: Path):
    # a cancelled execution counted as a code error: the model was asked, and code ran again
    token, client = CancellationToken(), replay(TICKS, "never said")
    async with own_session(work_dir=tmp_path) as executor:
        agent = agent_of(client, executor, max_retries_on_error=3, stream_output=True)
        items: list[Any] = []
        async for item in agent.on_messages_stream([user(TASK)], token):
            items.append(item)
            if isinstance(item, ModelClientStreamingChunkEvent) and "started" in item.content:
                token.cancel()
        assert not await ticking(tmp_path)
        message = items[-1].chat_message
        assert "started" in message.content
        assert Ending.from_metadata(message.metadata) is Ending.CANCELLED
        assert record_of(message).outcome is Outcome.CANCELLED
        assert isinstance(items[-2], CodeExecutionEvent)
        assert calls_of(client) == 1
        assert "started" in (await said_in(agent))[-1], "the code is answered"


@pytest.mark.parametrize("number", range(4), ids=["first", "decision", "second", "reflection"])
async def test_every_call_to_the_model_can_be_cancelled(session: Session, number: int):
    # the retry decision and the reflection could not
    replies: list[Any] = [Text(py("1 / 0")), Json(RETRY), Text("It is 42."), Text("?")]
    replies[number:] = [Slow(60, Text("too late"))]
    token = CancellationToken()
    async with ScriptedServer(replies) as server:
        agent = agent_of(server, session, max_retries_on_error=1, max_reflections=1)
        running = asyncio.ensure_future(turn(agent, token=token))
        await server.wait_until(lambda server: len(server.requests) == number + 1, seconds=30)
        token.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await server.wait_until(lambda server: server.disconnects == 1)


async def test_so_can_the_last_one(session: Session):
    token = CancellationToken()
    async with ScriptedServer([Text(py("print(1)")), Slow(60, Text("too late"))]) as server:
        agent = agent_of(server, session, max_steps=1)
        running = asyncio.ensure_future(turn(agent, token=token))
        await server.wait_until(lambda server: len(server.requests) == 2, seconds=30)
        token.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_a_run_that_was_cancelled_before_it_began_does_nothing(session: Session):
    token, client = CancellationToken(), replay("never said")
    token.cancel()
    message = await answer(agent_of(client, session), token=token)
    assert (message.content, calls_of(client)) == ("The run was cancelled.", 0)
    assert Ending.from_metadata(message.metadata) is Ending.CANCELLED


async def test_waiting_for_approval_can_be_cancelled(session: Session):
    asked = asyncio.Event()

    async def undecided(request: ApprovalRequest) -> ApprovalResponse:
        asked.set()
        await asyncio.sleep(60)
        return yes(request)

    token, client = CancellationToken(), replay(py("print(1)"), "never said")
    agent = agent_of(client, session, approval_func=undecided)
    running = asyncio.ensure_future(answer(agent, token=token))
    await asked.wait()
    token.cancel()
    message = await running
    assert (message.content, calls_of(client)) == (CANCELLED, 1)
    assert CANCELLED in (await said_in(agent))[-1]


async def test_code_is_not_run_if_the_answer_was_yes_but_came_with_a_cancellation(tmp_path: Path):
    token = CancellationToken()

    def approve(request: ApprovalRequest) -> ApprovalResponse:
        token.cancel()
        return yes(request)

    async with own_session(work_dir=tmp_path) as executor:
        agent = agent_of(replay(TICKS), executor, approval_func=approve)
        message = await answer(agent, token=token)
    assert message.content == CANCELLED
    assert not (tmp_path / "tick").exists()


async def test_a_denial_is_told_to_the_model_and_the_run_goes_on(tmp_path: Path):
    # a denied approval counted as a code error
    requests: list[ApprovalRequest] = []

    def deny(request: ApprovalRequest) -> ApprovalResponse:
        requests.append(request)
        return no(request)

    async with (
        own_session(work_dir=tmp_path) as executor,
        ScriptedServer([Text(TICKS), Text("As you wish.")]) as server,
    ):
        message = await answer(agent_of(server, executor, approval_func=deny))
    assert (message.content, record_of(message).outcome) == ("As you wish.", Outcome.DENIED)
    assert "Code execution was not approved. Reason: too risky" in contents(server.requests[1])[-1]
    assert not (tmp_path / "tick").exists()
    assert "time.sleep(0.02)" in requests[0].code
    assert [str(message.content) for message in requests[0].context] == [TASK, TICKS]


@pytest.mark.parametrize("and_the_token", [False, True])
async def test_a_cancelled_task_stops_the_code_and_stays_cancelled(tmp_path: Path, and_the_token: bool):
    token = CancellationToken()
    async with own_session(work_dir=tmp_path) as executor:
        agent = agent_of(replay(TICKS), executor)
        running = asyncio.ensure_future(turn(agent, token=token))
        await first_tick(tmp_path)
        if and_the_token:
            token.cancel()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not await ticking(tmp_path)
        assert (await said_in(agent))[-2:] == [TICKS, CANCELLED]


@pytest.mark.parametrize("after", [CodeGenerationEvent, ModelClientStreamingChunkEvent])
async def test_leaving_the_stream_stops_the_code_and_leaves_no_code_unanswered(tmp_path: Path, after: type):
    async with own_session(work_dir=tmp_path) as executor:
        agent = agent_of(replay(TICKS), executor, stream_output=True)
        items = agent.on_messages_stream([user(TASK)], CancellationToken())
        async for item in items:
            if isinstance(item, after):
                break
        await items.aclose()
        assert not await ticking(tmp_path)
        assert (await said_in(agent))[-2:] == [TICKS, CANCELLED]


async def test_the_conversation_and_the_variables_go_on_after_a_cancellation(tmp_path: Path):
    token = CancellationToken()
    replies = [py("x = 42"), TICKS, py("print(x)"), "Still 42."]
    async with own_session(work_dir=tmp_path) as executor:
        agent = agent_of(replay(*replies), executor)
        running = asyncio.ensure_future(turn(agent, token=token))
        await first_tick(tmp_path)
        token.cancel()
        await running
        items = await turn(agent, user("And x?"))
    assert outputs(items) == ["42\n"]


async def test_a_time_limit_does_not_hide_a_cancellation(session: Session):
    token = CancellationToken()
    async with ScriptedServer([Slow(60, Text("too late"))]) as server:
        running = asyncio.ensure_future(turn(agent_of(server, session, max_seconds=60), token=token))
        await server.wait_until(lambda server: len(server.requests) == 1)
        token.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_a_cancelled_team_asks_no_model_and_runs_no_code_any_more(tmp_path: Path):
    token = CancellationToken()
    async with ScriptedServer([Text(TICKS)]) as server, own_session(work_dir=tmp_path) as executor:
        team = RoundRobinGroupChat([agent_of(server, executor)], max_turns=3)
        running = asyncio.ensure_future(team.run(task=TASK, cancellation_token=token))
        await first_tick(tmp_path)
        token.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not await ticking(tmp_path)
        assert len(server.requests) == 1
