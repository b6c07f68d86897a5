"""Handing the work to another agent, in a real Swarm."""

from __future__ import annotations

from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import Handoff, Response
from autogen_agentchat.conditions import TextMentionTermination
from autogen_agentchat.messages import (
    HandoffMessage,
    TextMessage,
    ToolCallExecutionEvent,
    ToolCallRequestEvent,
)
from autogen_agentchat.teams import Swarm
from autogen_core import FunctionCall
from autogen_core.models import AssistantMessage, CreateResult, FunctionExecutionResultMessage, RequestUsage
from autogen_core.tools import FunctionTool
from support.agents import TASK, contents, record_of, replay, turn, user
from support.codeact import agent_of, outputs, py
from support.openai_server import ScriptedServer, Text, ToolCalls

from codeact_team.agents.observations import Ending
from codeact_team.executors.confined import ConfinedSessionCodeExecutor

Session = ConfinedSessionCodeExecutor

TO_REVIEWER = ToolCalls([("transfer_to_reviewer", {})])
TRANSFERRED = "Transferred to reviewer, adopting the role of reviewer immediately."


def handed_over(items: list[Any]) -> HandoffMessage:
    final = items[-1]
    assert isinstance(final, Response)
    assert isinstance(final.chat_message, HandoffMessage)
    return final.chat_message


async def test_a_handoff_ends_the_turn(session: Session):
    async with ScriptedServer([Text(py("print(42)")), TO_REVIEWER]) as server:
        items = await turn(agent_of(server, session, handoffs=["reviewer"]))
    message = handed_over(items)
    assert (message.target, message.content, message.context) == ("reviewer", TRANSFERRED, [])
    assert record_of(message).output == "42\n"
    assert Ending.from_metadata(message.metadata) is Ending.HANDED_OFF
    assert message.models_usage is not None
    assert message.models_usage.prompt_tokens == 200
    assert [type(item) for item in items[-3:-1]] == [ToolCallRequestEvent, ToolCallExecutionEvent]
    assert [tool["function"]["name"] for tool in server.requests[0]["tools"]] == ["transfer_to_reviewer"]


async def test_in_a_swarm_the_other_agent_goes_on_and_hands_back(session: Session):
    replies = [
        Text(py("total = sum(range(1, 11))")),
        TO_REVIEWER,
        ToolCalls([("transfer_to_coder", {})]),
        Text(py("print(total)")),
        Text("It is 55. TERMINATE"),
    ]
    async with ScriptedServer(replies) as server:
        coder = agent_of(server, session, handoffs=["reviewer"])
        reviewer = AssistantAgent("reviewer", server.client(), handoffs=["coder"])
        team = Swarm([coder, reviewer], termination_condition=TextMentionTermination("TERMINATE"))
        result = await team.run(task=TASK)
    handoffs = [message.target for message in result.messages if isinstance(message, HandoffMessage)]
    assert handoffs == ["reviewer", "coder"]
    assert result.messages[-1].to_text() == "It is 55. TERMINATE"
    last = server.requests[-1]["messages"]
    calls = [message for message in last if message.get("tool_calls")]
    assert len(calls) == 1, "its own handoff, with its result"
    assert last[last.index(calls[0]) + 1]["role"] == "tool"


async def test_two_agents_that_act_by_code_work_in_a_swarm(session: Session):
    first = replay(
        py("x = 6"),
        CreateResult(
            content=[FunctionCall(id="1", name="transfer_to_second", arguments="{}")],
            finish_reason="function_calls",
            usage=RequestUsage(1, 1),
            cached=False,
            thought="Let the other one multiply.",
        ),
    )
    coder = agent_of(first, session, handoffs=["second"])
    second = type(coder)("second", replay(py("x * 7"), "It is 42. TERMINATE"), session, handoffs=["coder"])
    team = Swarm([coder, second], termination_condition=TextMentionTermination("TERMINATE"))
    result = await team.run(task=TASK)
    [handoff] = [message for message in result.messages if isinstance(message, HandoffMessage)]
    assert handoff.context == [AssistantMessage(content="Let the other one multiply.", source="coder")]
    assert "Let the other one multiply." in [
        str(message.content) for message in await second.model_context.get_messages()
    ]
    assert result.messages[-1].to_text() == "It is 42. TERMINATE"


async def test_only_the_first_handoff_counts_and_every_call_gets_a_result(session: Session):
    calls = ToolCalls([("search", {}), ("transfer_to_a", {}), ("transfer_to_b", {})])
    async with ScriptedServer([calls, Text("Hello again.")]) as server:
        agent = agent_of(server, session, handoffs=["a", "b"])
        assert handed_over(await turn(agent)).target == "a"
        await turn(agent, user("Go on."))
    results = [message for message in server.requests[1]["messages"] if message["role"] == "tool"]
    assert [result["content"] for result in results] == [
        "Not done: the work was handed over.",
        "Transferred to a, adopting the role of a immediately.",
        "Not done: the work was handed over.",
    ]


async def test_a_call_of_something_else_is_answered_in_words(session: Session):
    async with ScriptedServer([ToolCalls([("search", {})]), Text("It is 42.")]) as server:
        items = await turn(agent_of(server, session, handoffs=["reviewer"]))
    assert isinstance(items[-1], Response)
    assert items[-1].chat_message.to_text() == "It is 42."
    assert "a tool that was not offered (search)" in contents(server.requests[1])[-1]


class ToBoss(Handoff):
    @property
    def handoff_tool(self) -> Any:
        def to_boss(reason: str) -> str:
            return f"Over to you: {reason}"

        return FunctionTool(to_boss, description="Hand over to the boss.")


@pytest.mark.parametrize("arguments", ['{"why": 1}', "not JSON", "[1]"])
async def test_a_handoff_whose_tool_fails_is_answered_in_words(session: Session, arguments: str):
    wrong = CreateResult(
        content=[FunctionCall(id="1", name="to_boss", arguments=arguments)],
        finish_reason="function_calls",
        usage=RequestUsage(1, 1),
        cached=False,
    )
    right = wrong.model_copy(
        update={"content": [FunctionCall(id="2", name="to_boss", arguments='{"reason": "stuck"}')]}
    )
    client = replay(wrong, right)
    message = handed_over(
        await turn(agent_of(client, session, handoffs=[ToBoss(target="boss", name="to_boss")]))
    )
    assert message.content == "Over to you: stuck"
    assert "to_boss failed: ValidationError" in str(client.create_calls[1]["messages"][-1].content)


async def test_at_the_end_of_a_budget_the_work_may_still_be_handed_over(session: Session):
    async with ScriptedServer([Text(py("print(1)")), TO_REVIEWER]) as server:
        items = await turn(agent_of(server, session, handoffs=["reviewer"], max_steps=1))
    message = handed_over(items)
    assert outputs(items) == ["1\n"]
    assert Ending.from_metadata(message.metadata) is Ending.MAX_STEPS


def test_it_says_what_it_produces(session: Session):
    assert agent_of(replay(), session).produced_message_types == (TextMessage,)
    with_handoffs = agent_of(replay(), session, handoffs=["b"])
    assert set(with_handoffs.produced_message_types) == {TextMessage, HandoffMessage}


async def test_the_context_holds_the_handoff_as_a_call_and_its_result(session: Session):
    async with ScriptedServer([TO_REVIEWER]) as server:
        agent = agent_of(server, session, handoffs=["reviewer"])
        await turn(agent)
    *_, call, result = await agent.model_context.get_messages()
    assert isinstance(call, AssistantMessage)
    assert isinstance(result, FunctionExecutionResultMessage)
    assert result.content[0].content == TRANSFERRED
