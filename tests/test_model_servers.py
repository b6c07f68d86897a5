"""A small team works to its end with each server that speaks OpenAI's protocol, whatever is special about it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import CodeExecutionEvent, ThoughtEvent, ToolCallExecutionEvent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.models import UserMessage
from autogen_core.tools import FunctionTool
from openai import APIStatusError
from support.agents import TASK, picture
from support.codeact import own_session, py
from support.model_servers import SERVERS, VLLM, LlamaCpp, ModelServer, Ollama
from support.openai_server import AnyReply, Json, ScriptedServer, Text, ToolCalls
from support.variations import mostly_long

from codeact_team import (
    CodeActAgent,
    Dispatcher,
    Event,
    ReflectionAgent,
    ReflectionTermination,
    Verdict,
    wrap,
)
from codeact_team.core.events import ModelCallEnded
from codeact_team.models.clients import wrap_client
from codeact_team.models.refusals import RefusalKind, ServerRefusal

VERDICT = Verdict(accepted=True, next_step="Buy tea.", answer="They cost 8.")
WORK: Sequence[AnyReply] = (
    Text(py("print(tools.price(what='tea') * 2)"), reasoning="Tea has a price."),
    Text("They cost 8.", reasoning="It printed 8."),
    ToolCalls([("stock", {"what": "tea"}), ("stock", {"what": "milk"})]),
    Text("There are 5."),
    Json(VERDICT),
)
ROOT = Path(__file__).parents[1]
NAMES = [server.name for server in SERVERS]


def price(what: str) -> int:
    """The price of something."""
    return len(what) + 1


def stock(what: str) -> int:
    """How many there are of something."""
    return len(what) + 2


async def worked(server: ScriptedServer, model: str, *, stream: bool) -> tuple[TaskResult, Sequence[Event]]:
    """Has a team work whose code calls a tool, whose model calls others, and whose reviewer writes JSON."""
    client = server.client(model=model)
    events: list[Event] = []
    with Dispatcher() as dispatcher:
        dispatcher.listen(events.append)
        async with own_session() as executor:
            tools = [FunctionTool(price, "The price of something.")]
            coder = CodeActAgent("coder", client, executor, tools=tools, model_client_stream=stream)
            clerk = AssistantAgent(
                "clerk", wrap(client), tools=[stock], max_tool_iterations=2, model_client_stream=stream
            )
            critic = ReflectionAgent("critic", client)
            team = RoundRobinGroupChat([coder, clerk, critic], termination_condition=ReflectionTermination())
            return await team.run(task=TASK), events


# AutoGen's log of a parsed answer, and its check of the model's name
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings", "ignore:Resolved model mismatch")
@pytest.mark.parametrize("stream", mostly_long([True, False]))
@pytest.mark.parametrize("kind", mostly_long(SERVERS, usual=2), ids=NAMES)
async def test_a_team_works_to_its_end_with_a_server(kind: type[ModelServer], stream: bool) -> None:
    async with ScriptedServer(WORK, kind()) as server:
        result, events = await worked(server, kind.model, stream=stream)
    assert not server.unused
    assert Verdict.from_metadata(getattr(result.messages[-1], "metadata", {})) == VERDICT
    # streaming, and the code's tool
    ran = [message.result for message in result.messages if isinstance(message, CodeExecutionEvent)]
    assert [(block.exit_code, block.output) for block in ran] == [(0, "8\n")]
    thoughts = [each.content for each in result.messages if isinstance(each, ThoughtEvent)]
    assert thoughts[:2] == ["Tea has a price.", "It printed 8."]
    # the model's tools
    (called,) = [each for each in result.messages if isinstance(each, ToolCallExecutionEvent)]
    assert [each.content for each in called.content] == ["5", "6"]
    assert len({each.call_id for each in called.content}) == 2
    # usage, and how each answer has ended
    ended = [event for event in events if isinstance(event, ModelCallEnded)]
    assert [event.finish_reason for event in ended] == ["stop", "stop", "function_calls", "stop", "stop"]
    assert not any(event.is_estimated for event in ended)
    assert [getattr(event.usage, "prompt_tokens", 0) for event in ended] == [100] * len(WORK)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_messages_of_several_agents_are_joined_for_a_model_that_takes_them_in_turns_only() -> None:
    async with ScriptedServer(WORK, VLLM(alternates=True)) as server:
        result, _ = await worked(server, VLLM.model, stream=True)
    assert Verdict.from_metadata(getattr(result.messages[-1], "metadata", {})) == VERDICT
    # each client is refused once
    assert len(server.requests) == len(WORK) + 2
    asked = server.requests[-1]["messages"]
    assert [message["role"] for message in asked] == ["system", "user"]
    for said in (TASK, "They cost 8.", "There are 5."):
        assert said in asked[-1]["content"]


async def test_a_picture_among_joined_messages_stays_one() -> None:
    asked = [UserMessage(content="Look.", source="a"), UserMessage(content=["Here:", picture()], source="b")]
    async with ScriptedServer([Text("Fine.")], VLLM(alternates=True)) as server:
        assert (await wrap_client(server.client(model=VLLM.model)).ask(asked)).content == "Fine."
    (said,) = server.requests[-1]["messages"]
    assert [part.get("text", part["type"]) for part in said["content"]] == ["Look.", "Here:", "image_url"]


@pytest.mark.parametrize("kind", [server for server in SERVERS if server is not LlamaCpp])
async def test_a_model_that_a_server_does_not_have_is_told_as_such(kind: type[ModelServer]) -> None:
    refusal = await refused(kind(), "gpt-41")
    assert refusal.kind is RefusalKind.UNKNOWN
    assert "gpt-41" in str(refusal)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Ollama, "does not support tools"),
        (VLLM, "requires --enable-auto-tool-choice and --tool-call-parser"),
        (LlamaCpp, "requires --jinja"),
    ],
)
async def test_a_server_that_was_started_without_tools_says_how_to_start_it_and_is_not_asked_again(
    kind: type[ModelServer], said: str
) -> None:
    refusal = await refused(kind(lacks_tools=True), kind.model, tools=[FunctionTool(stock, "How many.")])
    assert refusal.kind is RefusalKind.REQUEST
    assert not refusal.is_transient
    assert said in str(refusal)


async def refused(kind: ModelServer, model: str, **options: Any) -> ServerRefusal:
    async with ScriptedServer([], kind) as server:
        with pytest.raises(APIStatusError) as caught:
            await server.client(model=model).create([UserMessage(content="Hi", source="user")], **options)
    refusal = ServerRefusal.of(caught.value)
    assert refusal is not None
    return refusal


def test_the_guide_s_table_has_the_servers_that_were_tried() -> None:
    page = (ROOT / "docs" / "guides" / "models.md").read_text()
    rows = page.partition("| server |")[2].partition("\n\n")[0].splitlines()[2:]
    assert [row.split("|")[1].strip() for row in rows] == NAMES
