"""Stopping a run at any moment: by the token, by cancelling the task, by leaving the stream."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from autogen_agentchat.messages import (
    CodeGenerationEvent,
    ModelClientStreamingChunkEvent,
)
from autogen_core import CancellationToken
from support.agents import TASK, answer, calls_of, replay, turn, user
from support.codeact import agent_of, own_session, py
from support.openai_server import ScriptedServer, Slow, Text
from support.waiting import ticking

from codeact_team.agents.codeact.agent import CodeActAgent
from codeact_team.agents.observations import Ending
from codeact_team.executors.confined import ConfinedSessionCodeExecutor

Session = ConfinedSessionCodeExecutor

TICKS = py(
    "import pathlib, time\nprint('started')\nfor number in range(10_000):\n"
    "    pathlib.Path('tick').write_text(str(number))\n    time.sleep(0.02)"
)
CANCELLED = "Code execution was cancelled."


async def said_in(agent: CodeActAgent) -> list[str]:
    return [str(message.content) for message in await agent.model_context.get_messages()]


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


async def test_a_time_limit_does_not_hide_a_cancellation(session: Session):
    token = CancellationToken()
    async with ScriptedServer([Slow(60, Text("too late"))]) as server:
        running = asyncio.ensure_future(turn(agent_of(server, session, max_seconds=60), token=token))
        await server.wait_until(lambda server: len(server.requests) == 1)
        token.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
