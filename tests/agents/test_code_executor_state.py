"""What an agent remembers, forgets, and takes along into another process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.agents import CodeExecutorAgent as AutoGenAgent
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import CancellationToken
from autogen_core.code_executor import CodeExecutor
from autogen_core.models import ChatCompletionClient
from support.agents import (
    PRINTS_42,
    TASK,
    Foreign,
    Streaming,
    answer,
    confined,
    contents,
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
    assert executor.restarted == 2


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
