"""What AutoGen's agents and front ends are used to: memory, ids of messages, messages as JSON, and ``close``."""

from __future__ import annotations

import json
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import (
    BaseMessage,
    CodeExecutionEvent,
    MessageFactory,
)
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_agentchat.tools import AgentTool, TeamTool
from autogen_core.memory import ListMemory
from autogen_ext.code_executors.docker import DockerCommandLineCodeExecutor as Theirs
from support.agents import (
    Foreign,
    answer,
    contents,
    replay,
    turn,
    user,
    yes,
)
from support.codeact import agent_of, outputs, py
from support.executing import KINDS
from support.openai_server import ScriptedServer, Text

from codeact_team.agents.code_executor import CodeExecutorAgent
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


async def test_memory_that_would_have_no_effect_is_refused():
    with pytest.raises(SettingError, match="memory needs a model_client"):
        CodeExecutorAgent("agent", Foreign(), memory=[ListMemory()], approval_func=yes)
    with pytest.raises(SettingError, match="memory: a list"):
        ReflectionAgent("agent", replay(), memory=ListMemory())  # type: ignore[arg-type]


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


def test_the_languages_of_the_executor_are_where_autogen_has_them():
    assert set(DockerCommandLineCodeExecutor.SUPPORTED_LANGUAGES) == set(Theirs.SUPPORTED_LANGUAGES)
