"""Generate, execute, decide, regenerate, reflect: over real HTTP, with code that really runs."""

from __future__ import annotations

import json
from typing import Any

import pytest
from autogen_agentchat.agents import CodeExecutorAgent as AutoGenAgent
from autogen_core.code_executor import CodeResult
from autogen_core.models import AssistantMessage, RequestUsage, SystemMessage, UserMessage
from support.agents import (
    FAILS,
    GIVE_UP,
    PRINTS_42,
    RETRY,
    TASK,
    Foreign,
    answer,
    contents,
    record_of,
    replay,
    turn,
    user,
    yes,
)
from support.openai_server import (
    AnyReply,
    Filtered,
    Json,
    Refusal,
    ScriptedServer,
    Text,
    ToolCalls,
    Truncated,
)

from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.agents.observations import Ending
from codeact_team.models.verdicts import RetryDecision

ERROR = CodeResult(exit_code=1, output="ZeroDivisionError: division by zero\n")
DIVISION = "ZeroDivisionError: division by zero"


def agent_of(server: ScriptedServer, executor: Any = None, **settings: Any) -> CodeExecutorAgent:
    usual: dict[str, Any] = {"max_retries_on_error": 3, "approval_func": yes}
    client = server.client(**settings.pop("client", {}))
    return CodeExecutorAgent("executor", executor or Foreign(ERROR), model_client=client, **usual | settings)


async def test_an_unreadable_decision_costs_as_well():
    cut = Truncated('{"reason": "Becau', prompt_tokens=1000)
    async with ScriptedServer([Text(FAILS), cut, cut, Text("It failed.")]) as server:
        message = await answer(agent_of(server))
    assert message.models_usage == RequestUsage(prompt_tokens=2200, completion_tokens=40)


async def test_a_decision_that_cannot_be_read_once_does_not_end_the_repair():
    amid_prose = Text(f"Sure!\n{json.dumps(RETRY)}\nGood luck.")
    replies = [Text(FAILS), amid_prose, Json(RETRY), Text(PRINTS_42), Text("It is 42.")]
    async with ScriptedServer(replies) as server:
        message = await answer(agent_of(server))
    assert record_of(message).retry_decisions == [RetryDecision.model_validate(RETRY)]


async def test_after_the_last_attempt_no_decision_is_asked():
    async with ScriptedServer([Text(FAILS), Json(RETRY), Text(FAILS), Text("Sorry.")]) as server:
        message = await answer(agent_of(server, Foreign(ERROR, ERROR), max_retries_on_error=1))
    record = record_of(message)
    assert (record.attempts, record.exit_code, len(record.retry_decisions)) == (2, 1, 1)


async def test_without_reflection_the_result_is_the_response_and_no_call_is_spent_on_it():
    async with ScriptedServer([Text(PRINTS_42)]) as server:
        message = await answer(agent_of(server, Foreign(), reflect=False))
    assert message.content == "42\n"
    assert message.models_usage == RequestUsage(prompt_tokens=100, completion_tokens=10)


async def test_without_reflection_a_declined_retry_is_in_the_response():
    async with ScriptedServer([Text(FAILS), Json(GIVE_UP)]) as server:
        message = await answer(agent_of(server, reflect=False))
    assert DIVISION in message.content
    assert message.content.endswith("No further attempt: It cannot be done.")


async def test_a_reason_cannot_smuggle_code_into_the_response():
    reason = "Nothing helps but\n```python\nprint('again')\n```"
    async with ScriptedServer([Text(FAILS), Json({"reason": reason, "retry": False})]) as server:
        message = await answer(agent_of(server, reflect=False))
    agent = CodeExecutorAgent("next", Foreign(), approval_func=yes)
    assert await agent.extract_code_blocks_from_messages([message]) == []


async def test_code_in_a_language_that_is_not_supported_is_named_to_the_model_and_to_the_user():
    # an unsupported language was dropped silently beside a supported one
    both = PRINTS_42 + "and\n```ruby\nputs 42\n```\n"
    async with ScriptedServer([Text(both), Text("It is 42.")]) as server:
        await turn(agent_of(server, Foreign()))
        assert "ruby" in contents(server.requests[1])[-1]
    async with ScriptedServer([Text(both)]) as server:
        message = await answer(agent_of(server, Foreign(), reflect=False))
    assert message.content == "42\n\n[Code not run, its language is not supported here: ruby]"


async def test_an_answer_with_code_of_an_unsupported_language_only_says_that_it_was_not_run():
    async with ScriptedServer([Text("```ruby\nputs 42\n```")]) as server:
        message = await answer(agent_of(server))
    assert message.content.endswith("[Code not run, its language is not supported here: ruby]")
    assert message.metadata == {}


async def test_the_context_is_a_conversation_that_can_go_on():
    agent = CodeExecutorAgent(
        "executor", Foreign(), model_client=replay(PRINTS_42, "It is 42."), approval_func=yes
    )
    await turn(agent)
    messages = await agent.model_context.get_messages()
    assert [type(message) for message in messages] == [
        UserMessage,
        AssistantMessage,
        UserMessage,
        AssistantMessage,
    ]
    assert not any(isinstance(message, SystemMessage) for message in messages)
    assert messages[2].content == "<output>\n42\n\n</output>"


NOTHING = "(The model gave no answer, or declined to.)"


@pytest.mark.parametrize(
    ("reply", "words", "ending"),
    [
        (Text(" \n"), NOTHING, Ending.NO_ANSWER),
        (Refusal(), "I cannot help with that.", Ending.REFUSED),
        (Filtered(), NOTHING, Ending.REFUSED),
        (Truncated(""), NOTHING, Ending.CUT_OFF),
        (ToolCalls([("python", {})]), "python({})", Ending.NO_SUCH_TOOL),
    ],
    ids=["blank", "refused", "filtered", "cut off", "a call of a tool"],
)
@pytest.mark.parametrize("stream", [False, pytest.param(True, marks=pytest.mark.long)])
@pytest.mark.filterwarnings("ignore:No text content or tool calls are available")
async def test_a_reply_that_is_none_is_told_by_name(
    reply: AnyReply, words: str, ending: Ending, stream: bool
):
    alone: dict[str, Any] = {"model_client_stream": stream, "max_retries_on_error": 0}
    async with ScriptedServer([reply]) as server:
        message = await answer(agent_of(server, **alone))
    assert message.content.startswith(f"{words}\n[This reply was ")
    assert Ending.from_metadata(message.metadata) is ending
    async with ScriptedServer([Text(PRINTS_42), reply]) as server:
        message = await answer(agent_of(server, Foreign(), **alone))
    assert message.content.startswith(words)
    assert record_of(message).output == "42\n", "and the result is not lost"
    async with ScriptedServer([reply, Text("It is 42.")]) as server:
        message = await answer(agent_of(server, **alone | {"max_retries_on_error": 1}))
    assert (message.content, Ending.from_metadata(message.metadata)) == ("It is 42.", None)


async def test_an_answer_that_was_cut_off_is_told_to_the_model():
    async with ScriptedServer([Text(PRINTS_42), Truncated("It is 4"), Text("Well.")]) as server:
        agent = agent_of(server, Foreign())
        await turn(agent)
        await turn(agent, user("And now?"))
    told = "This answer was cut off at the model's token limit."
    assert contents(server.requests[2])[4:6] == ["It is 4", told]


async def test_autogens_class_gets_the_task_wrong_where_ours_does_not():
    """The tests above tell the two apart: AutoGen's agent repeats the task and loses usage."""
    replies = [FAILS, json.dumps(RETRY), PRINTS_42, "It is 42."]
    client = replay(*replies)
    agent = AutoGenAgent(
        "executor", Foreign(ERROR), model_client=client, max_retries_on_error=1, approval_func=yes
    )
    await turn(agent)
    seen = [str(call["messages"]).count(TASK) for call in client.create_calls]
    assert seen == [1, 1, 2, 2]
