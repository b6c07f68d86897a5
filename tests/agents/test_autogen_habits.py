"""What AutoGen's agents and front ends are used to: memory, ids of messages, messages as JSON, and ``close``."""

from __future__ import annotations

import json
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent, BaseChatAgent
from autogen_agentchat.messages import (
    BaseMessage,
    CodeExecutionEvent,
    CodeGenerationEvent,
    MemoryQueryEvent,
    MessageFactory,
    ModelClientStreamingChunkEvent,
)
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_agentchat.tools import AgentTool, TeamTool
from autogen_core.memory import ListMemory, MemoryContent
from autogen_ext.code_executors.docker import DockerCommandLineCodeExecutor as Theirs
from support.agents import (
    Foreign,
    Item,
    answer,
    contents,
    replay,
    response,
    turn,
    user,
    yes,
)
from support.codeact import agent_of, outputs, py
from support.executing import KINDS
from support.openai_server import Json, ScriptedServer, Text

from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.agents.codeact.agent import CodeActAgent
from codeact_team.agents.observations import result_from_metadata
from codeact_team.agents.reflection_agent import ReflectionAgent
from codeact_team.core.execution import Outcome, SessionResult
from codeact_team.errors import SettingError
from codeact_team.executors.confined import ConfinedSessionCodeExecutor
from codeact_team.executors.docker import DockerCommandLineCodeExecutor

Session = ConfinedSessionCodeExecutor

PICTURE = """
class Picture:
    def _repr_png_(self): return b"\\x89PNG\\r\\n\\x1a\\n\\xff"
kept = 42
Picture()
"""


def through_json(message: BaseMessage) -> Any:
    return MessageFactory().create(json.loads(json.dumps(message.dump())))


async def memory_of(*contents: str) -> ListMemory:
    memory = ListMemory()
    for content in contents:
        await memory.add(MemoryContent(content=content, mime_type="text/plain"))
    return memory


@pytest.mark.parametrize("kind", ["executor", "coder", "reviewer"])
async def test_memory_is_in_the_models_context_and_in_the_dump(session: Session, kind: str):
    memory = [await memory_of("The user likes metric units."), ListMemory()]
    async with ScriptedServer(
        [
            Json({"problems": [], "accepted": True, "next_step": ""})
            if kind == "reviewer"
            else Text("It is 42.")
        ]
    ) as server:
        client = server.client()
        agents: dict[str, BaseChatAgent] = {
            "executor": CodeExecutorAgent("agent", session, model_client=client, memory=memory),
            "coder": agent_of(server, session, memory=memory),
            "reviewer": ReflectionAgent("agent", client, memory=memory),
        }
        agent = agents[kind]
        told = await response(agent)
    assert "metric units" in str(contents(server.requests[0]))
    events = [event for event in told.inner_messages or () if isinstance(event, MemoryQueryEvent)]
    assert [event.content[0].content for event in events] == ["The user likes metric units."]
    loaded = type(agent).load_component(agent.dump_component())
    assert loaded.dump_component() == agent.dump_component()
    assert len(agent.dump_component().config["memory"]) == 2


async def test_memory_that_would_have_no_effect_is_refused():
    with pytest.raises(SettingError, match="memory needs a model_client"):
        CodeExecutorAgent("agent", Foreign(), memory=[ListMemory()], approval_func=yes)
    with pytest.raises(SettingError, match="memory: a list"):
        ReflectionAgent("agent", replay(), memory=ListMemory())  # type: ignore[arg-type]


def ids_of_chunks(items: list[Item]) -> list[str | None]:
    chunks = [item for item in items if isinstance(item, ModelClientStreamingChunkEvent)]
    return list(dict.fromkeys(chunk.full_message_id for chunk in chunks))


async def test_chunks_name_the_message_that_has_them_in_full(session: Session):
    replies = [Text(py("print(42)")), Text("It is 42.")]
    for make in (_executor, agent_of):
        async with ScriptedServer(replies) as server:
            agent = make(server, session, model_client_stream=True, stream_output=True)
            items = await turn(agent)
        *inner, last = items
        written, ran = (
            next(item for item in inner if isinstance(item, kind))
            for kind in (CodeGenerationEvent, CodeExecutionEvent)
        )
        assert ids_of_chunks(items) == [written.id, ran.id, last.chat_message.id]  # type: ignore[union-attr]


def _executor(server: ScriptedServer, session: Session, **settings: Any) -> CodeExecutorAgent:
    return CodeExecutorAgent("executor", session, model_client=server.client(), **settings)


async def test_a_result_in_an_event_survives_json(fresh_session: Session):
    # it came back as a bare CodeResult, without outcome, names and pictures
    items = await turn(agent_of(replay(py(PICTURE), "Done."), fresh_session))
    (event,) = (item for item in items if isinstance(item, CodeExecutionEvent))
    loaded = through_json(event)
    assert not isinstance(loaded.result, SessionResult)
    result = result_from_metadata(loaded.metadata)
    assert isinstance(result, SessionResult)
    assert result == event.result
    assert result.outcome is Outcome.COMPLETED
    assert ["kept", 42] == [result.names[1].name, int(result.names[1].preview or 0)]
    assert result.artifacts[0].data.endswith(b"\xff")


async def test_so_does_a_result_of_an_agent_that_tells_no_event(session: Session):
    message = through_json(await answer(CodeExecutorAgent("executor", session), user(py(PICTURE))))
    result = result_from_metadata(message.metadata)
    assert isinstance(result, SessionResult)
    assert result.artifacts[0].mime_type == "image/png"


@pytest.mark.parametrize("forged", ["{}", "no json", '{"session": {"exit_code": "x"}}'])
def test_what_is_no_result_is_none(forged: str):
    assert result_from_metadata({"codeact_team.result": forged}) is None
    assert result_from_metadata({}) is None


async def test_agents_and_teams_are_tools_that_give_text(fresh_session: Session):
    # they gave a TaskResult with all its messages
    writer = AssistantAgent("writer", replay("A poem.", "Another."), description="Writes.")
    team = RoundRobinGroupChat([AssistantAgent("poet", replay("An ode."))], max_turns=1)
    tools = [
        AgentTool(writer, return_value_as_last_message=True),
        TeamTool(team, name="poets", description="Write.", return_value_as_last_message=False),
    ]
    code = "[tools.writer(task='Write.'), tools.poets(task='Write.')]"
    async with ScriptedServer([Text(py(code)), Text("Done.")]) as server:
        items = await turn(agent_of(server, fresh_session, tools=tools))
    assert outputs(items)[0].startswith("['A poem.', 'poet: An ode.']\n")
    system = contents(server.requests[0])[0]
    assert "writer(task: str) -> str" in system
    assert "poets(task: str) -> str" in system


async def test_closing_an_agent_stops_the_executor_that_it_made_from_a_config():
    # in AutoGen Studio, which loads and closes, containers piled up
    kind = KINDS["confined-session"]
    mine = ConfinedSessionCodeExecutor()
    before = kind.held()
    given = CodeExecutorAgent("executor", mine)
    loaded = CodeExecutorAgent.load_component(given.dump_component())
    assert (await answer(loaded, user(py("1 + 1")))).content == "2\n"
    assert len(kind.held() - before) == 1
    await loaded.close()
    assert kind.held() == before
    await loaded.close()
    assert (await answer(given, user(py("x = 1")))).content == "(no output)"
    await given.close()
    assert (await answer(given, user(py("x")))).content == "1\n", "what was given is the giver's"
    await mine.stop()


async def test_so_does_closing_an_agent_that_acts_by_code():
    kind = KINDS["confined-session"]
    before = kind.held()
    agent = agent_of(replay(py("1 + 1"), "Two."), ConfinedSessionCodeExecutor())
    loaded = CodeActAgent.load_component(agent.dump_component())
    await turn(loaded)
    assert len(kind.held() - before) == 1
    await loaded.close()
    assert kind.held() == before


def test_the_languages_of_the_executor_are_where_autogen_has_them():
    assert set(DockerCommandLineCodeExecutor.SUPPORTED_LANGUAGES) == set(Theirs.SUPPORTED_LANGUAGES)
