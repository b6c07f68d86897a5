"""Several agents that share one executor."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from autogen_agentchat.agents import SocietyOfMindAgent
from autogen_agentchat.messages import ModelClientStreamingChunkEvent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import CancellationToken
from autogen_core.models import ChatCompletionClient
from support.agents import answer, contents, replay, turn, user
from support.codeact import agent_of, outputs, py
from support.openai_server import ScriptedServer, Text

from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.errors import SettingError
from codeact_team.executors.confined import ConfinedSessionCodeExecutor
from codeact_team.tools.approval_rules import ApprovalRule

Session = ConfinedSessionCodeExecutor


@pytest.fixture
def session(fresh_session: Session) -> Session:
    """Agents with different tools do not share an interpreter."""
    return fresh_session


def ordered(number: int) -> int:
    """Look up an order."""
    return number


def cancelled(number: int) -> int:
    """Cancel an order."""
    return -number


def executor_agent(name: str, session: Session, **settings: Any) -> CodeExecutorAgent:
    return CodeExecutorAgent(name, session, **settings)


async def test_a_reset_of_one_agent_waits_for_the_block_of_another_and_keeps_their_variables(
    session: Session,
):
    one = executor_agent("one", session)
    other = executor_agent("other", session, stream_output=True)
    await answer(one, user(py("x = 1")))
    code = py(
        "import pathlib, time\nprint('up')\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)\ny = 2"
    )
    resetting: asyncio.Task[None] | None = None
    async for item in other.on_messages_stream([user(code)], CancellationToken()):
        if isinstance(item, ModelClientStreamingChunkEvent) and resetting is None:
            resetting = asyncio.create_task(one.on_reset(CancellationToken()))
            await asyncio.sleep(0.05)
            assert not resetting.done()
            (session.work_dir / "go").touch()
    assert resetting is not None
    await resetting
    assert (await answer(other, user(py("y")))).content == "2\n"


async def test_a_reset_that_waits_can_be_cancelled(session: Session):
    one = executor_agent("one", session)
    other = executor_agent("other", session, stream_output=True)
    token = CancellationToken()
    items = other.on_messages_stream([user(py("import time\nprint('up')\ntime.sleep(60)"))], token)
    assert isinstance(await anext(items), ModelClientStreamingChunkEvent)
    impatient = CancellationToken()
    resetting = asyncio.create_task(one.on_reset(impatient))
    await asyncio.sleep(0)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await resetting
    token.cancel()
    assert [item async for item in items]


async def test_a_society_of_mind_resets_its_team_without_harm_to_others(session: Session):
    # AutoGen resets the inner team after each answer, unasked
    def inner_team(client: ChatCompletionClient) -> RoundRobinGroupChat:
        return RoundRobinGroupChat([agent_of(client, session)], max_turns=1)

    outer = executor_agent("outer", session)
    await answer(outer, user(py("kept = 1")))
    society = SocietyOfMindAgent("society", inner_team(replay(py("inner = 2"), "Two.")), replay("It is two."))
    assert (await answer(society, user("What is it?"))).content == "It is two."
    assert (await answer(outer, user(py("kept")))).content == "1\n"


async def test_when_all_who_share_an_executor_are_reset_its_variables_are_gone(session: Session):
    agents = [executor_agent("one", session), executor_agent("other", session)]
    for agent in agents:
        await answer(agent, user(py("kept = 1")))
    await RoundRobinGroupChat([*agents], max_turns=2).reset()
    for agent in agents:
        message = await answer(agent, user(py("'kept' in dir()")))
        assert message.content == "False\n", "and nobody is told of what they have given up"


async def test_an_agent_that_is_loaded_beside_another_is_told_what_not_to_count_on(session: Session):
    other = executor_agent("other", session)
    async with ScriptedServer([Text(py("x = 1")), Text("One."), Text("Hm.")]) as server:
        agent = agent_of(server, session)
        await turn(agent)
        await answer(other, user(py("y = 2")))
        await agent.load_state(await agent.save_state())
        await turn(agent, user("Go on."))
    assert "Do not count on its variables" in contents(server.requests[2])[-2]
    assert (await answer(other, user(py("y")))).content == "2\n"


async def test_the_other_agent_is_told_of_an_interpreter_that_one_has_lost(session: Session):
    one, other = (
        executor_agent("one", session),
        agent_of(replay(py("x = 1"), "Done.", py("print('x' in dir())"), "No."), session),
    )
    await turn(other)
    await answer(one, user(py("import os; os._exit(3)")))
    said = outputs(await turn(other))[0]
    assert "was lost" in said
    assert said.endswith("False\n")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tools": [cancelled]},
        {"tools": [ordered], "approval": [ApprovalRule(tool="*", decision="deny")]},
    ],
    ids=["no tools", "other tools", "other rules"],
)
async def test_agents_with_different_tools_do_not_share_a_session(session: Session, settings: Any):
    # a thread that the first one's code left could call the tools of the second one's
    first = executor_agent("first", session, tools=[ordered])
    assert (await answer(first, user(py("tools.ordered(1)")))).content == "1\n"
    second = executor_agent("second", session, **settings)
    with pytest.raises(SettingError, match="an executor of its own"):
        await answer(second, user(py("1")))
    assert (await answer(first, user(py("tools.ordered(2)")))).content == "2\n"
    await first.on_reset(CancellationToken())
    assert (await answer(second, user(py("1")))).content == "1\n", "nothing of the first one's is left"


async def test_agents_with_the_same_tools_share_a_session(session: Session):
    def agent(name: str) -> CodeExecutorAgent:
        return executor_agent(
            name, session, tools=[ordered], approval=[ApprovalRule(tool="*", decision="allow")]
        )

    assert (await answer(agent("first"), user(py("x = tools.ordered(1)")))).content == "(no output)"
    assert (await answer(agent("second"), user(py("x + tools.ordered(2)")))).content == "3\n"
