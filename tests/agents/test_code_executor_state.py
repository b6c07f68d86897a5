"""What an agent remembers, forgets, and takes along into another process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.agents import CodeExecutorAgent as AutoGenAgent
from autogen_agentchat.messages import MultiModalMessage
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeExecutor
from autogen_core.model_context import BufferedChatCompletionContext
from autogen_core.models import ChatCompletionClient
from support.agents import (
    PRINTS_42,
    TASK,
    Foreign,
    Streaming,
    answer,
    confined,
    contents,
    picture,
    record_of,
    replay,
    turn,
    user,
    yes,
)
from support.openai_server import ScriptedServer, Text

from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.agents.observations import ExecutionRecord
from codeact_team.agents.reflection_agent import ReflectionAgent


def agent_of(
    client: ChatCompletionClient, executor: CodeExecutor | None = None, **settings: Any
) -> CodeExecutorAgent:
    return CodeExecutorAgent(
        "executor", executor or Foreign(), model_client=client, approval_func=yes, **settings
    )


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


async def test_reset_forgets_the_conversation():
    # on_reset kept the context
    async with ScriptedServer([Text("It is 42."), Text("What is?")]) as server:
        agent = agent_of(server.client())
        await turn(agent)
        await agent.on_reset(CancellationToken())
        await turn(agent, user("Is it?"))
    assert contents(server.requests[1])[1:] == ["Is it?"]


async def test_reset_forgets_what_was_in_a_config_as_autogens_contexts_do():
    context = BufferedChatCompletionContext(3, [])
    agent = agent_of(replay("Hello."), model_context=context)
    await turn(agent)
    await agent.on_reset(CancellationToken())
    assert await context.get_messages() == []


async def test_reset_ends_what_the_code_left_running_and_keeps_the_files(tmp_path: Path):
    async with confined(tmp_path) as executor:
        agent = CodeExecutorAgent("executor", executor)
        await turn(agent, user("```sh\necho 42 > kept\n```"))
        await agent.on_reset(CancellationToken())
        assert (await answer(agent, user("```sh\ncat kept\n```"))).content == "42\n"


async def test_reset_and_load_restart_the_executor_and_no_foreign_one():
    executor = Streaming()
    agent = CodeExecutorAgent("executor", executor)
    await agent.on_reset(CancellationToken())
    await agent.load_state(await agent.save_state())
    assert executor.restarts == 2


async def test_another_agent_goes_on_where_the_first_one_was_saved():
    # save_state saved nothing, so a resumed agent had forgotten everything
    async with ScriptedServer([Text(PRINTS_42), Text("It is 42."), Text("Because.")]) as server:
        first = agent_of(server.client())
        await turn(first)
        state = through_json(await first.save_state())
        second = agent_of(server.client())
        await second.load_state(state)
        await turn(second, user("Why?"))
    assert contents(server.requests[2])[1:] == [
        TASK,
        PRINTS_42,
        "<output>\n42\n\n</output>",
        "It is 42.",
        "Why?",
    ]


async def test_what_is_loaded_replaces_what_was_there():
    first, second = agent_of(replay("One.")), agent_of(replay("Two.", "Three."))
    await turn(first, user("first"))
    await turn(second, user("second"))
    await second.load_state(through_json(await first.save_state()))
    assert [str(message.content) for message in await second.model_context.get_messages()] == [
        "first",
        "One.",
    ]


async def test_a_saved_state_does_not_change_with_the_conversation():
    agent = agent_of(replay("One.", "Two."))
    await turn(agent)
    state = await agent.save_state()
    before = json.dumps(state)
    await turn(agent)
    assert json.dumps(state) == before


async def test_images_survive():
    async with ScriptedServer([Text("A square."), Text("Black.")]) as server:
        first = agent_of(server.client())
        await turn(first, MultiModalMessage(content=["What is this?", picture()], source="user"))
        second = agent_of(server.client())
        await second.load_state(through_json(await first.save_state()))
        await turn(second, user("What colour?"))
    assert server.requests[1]["messages"][1] == server.requests[0]["messages"][1]
    assert "image_url" in str(server.requests[1]["messages"][1])


async def test_a_state_that_autogens_agent_has_saved_can_be_loaded():
    theirs = AutoGenAgent("executor", Foreign(), approval_func=yes)
    agent = agent_of(replay("Hello."))
    await agent.load_state(await theirs.save_state())
    assert (await answer(agent)).content == "Hello."


async def test_a_whole_team_goes_on_in_another_process():
    # a resumed team had forgotten everything
    def team_of(server: ScriptedServer) -> RoundRobinGroupChat:
        client = server.client()
        executor = agent_of(client, code_from_messages=True)
        return RoundRobinGroupChat(
            [AssistantAgent("coder", client), executor, ReflectionAgent("reflection", client)], max_turns=3
        )

    verdict = '{"accepted": false, "problems": ["Too short."], "next_step": "Print more."}'
    replies = [Text(PRINTS_42), Text("It is 42."), Text(verdict)]
    async with ScriptedServer([*replies, Text(PRINTS_42), Text("Still 42."), Text(verdict)]) as server:
        first = team_of(server)
        result = await first.run(task=TASK)
        second = team_of(server)
        await second.load_state(through_json(await first.save_state()))
        again = await second.run(task="Go on.")
    assert record_of(again.messages[-2]).output == "42\n"  # pyright: ignore[reportArgumentType]
    coder, reflecting, judging = (str(contents(request)) for request in server.requests[3:])
    for request in (coder, reflecting, judging):
        assert request.count(TASK) == 1
        assert request.count("Go on.") == 1
    assert "Too short." in coder
    assert reflecting.count("<output>\\n42") == 2
    assert len(result.messages) == 5, "the task, three responses, and the execution"


async def test_metadata_survives_saving_and_loading():
    team = RoundRobinGroupChat([CodeExecutorAgent("executor", Foreign(), approval_func=yes)], max_turns=1)
    await team.run(task=PRINTS_42)
    state = through_json(await team.save_state())
    thread = state["agent_states"]["RoundRobinGroupChatManager"]["message_thread"]
    record = ExecutionRecord.from_metadata(thread[-1]["metadata"])
    assert record is not None
    assert record.output == "42\n"


async def test_a_team_can_be_reset():
    team = RoundRobinGroupChat([agent_of(replay("One.", "Two."))], max_turns=1)
    await team.run(task="first")
    await team.reset()
    result = await team.run(task="second")
    assert [message.to_text() for message in result.messages] == ["second", "Two."]
