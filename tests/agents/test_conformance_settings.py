"""What every agent's settings survive, and what is refused: the three agents."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from autogen_agentchat.base import Handoff
from autogen_agentchat.messages import MemoryQueryEvent
from autogen_core import CancellationToken, ComponentModel
from autogen_core.memory import ListMemory, MemoryContent
from autogen_core.model_context import (
    BufferedChatCompletionContext,
    ChatCompletionContext,
    HeadAndTailChatCompletionContext,
    TokenLimitedChatCompletionContext,
    UnboundedChatCompletionContext,
)
from autogen_core.models import AssistantMessage, LLMMessage, UserMessage
from pydantic import ValidationError
from support.agents import TOOL_FIELDS, contents, replay, response, turn
from support.openai_server import Json, ScriptedServer, Text
from support.variations import mostly_long

from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.agents.codeact.agent import CodeActAgent
from codeact_team.agents.codeact.config import CODEACT_SYSTEM_MESSAGE
from codeact_team.agents.reflection_agent import ReflectionAgent
from codeact_team.config import yaml12
from codeact_team.errors import SettingError
from codeact_team.executors.confined import ConfinedSessionCodeExecutor
from codeact_team.models.verdicts import REFLECTION_SYSTEM_MESSAGE

Kind = type[CodeExecutorAgent] | type[CodeActAgent] | type[ReflectionAgent]

SAID: list[LLMMessage] = [
    UserMessage(content="What is it?", source="user"),
    AssistantMessage(content="It is 42.", source="agent"),
]
PARTS = {"name", "model_client", "model_context", "memory"}
DESCRIBED: dict[str, Any] = {
    "description": "Does things.",
    "system_message": "You act by code.\n$functions",
    "max_pictures": 2,
}
RUNS_CODE: dict[str, Any] = DESCRIBED | {
    "model_client_stream": True,
    "stream_output": True,
    "rollback_on_error": True,
    "max_retries_on_error": 3,
    "approval_func": "codeact_team.core.providers:did_you_mean",
}
FIELDS: dict[Kind, dict[str, Any]] = {
    CodeExecutorAgent: RUNS_CODE
    | {
        "sources": ["coder", "user"],
        "supported_languages": ["python"],
        "code_from_messages": True,
        "reflect": False,
        "default_language": "python",
    },
    CodeActAgent: RUNS_CODE
    | {
        "functions": ["textwrap:dedent", "os.path:join"],
        "handoffs": ["reviewer", Handoff(target="b", name="to_b", description="For b.", message="Yours.")],
        "max_steps": 7,
        "max_seconds": 90.5,
        "max_tokens": 10_000,
        "max_reflections": 2,
        "attempts": 3,
        "output_schema": {
            "type": "object",
            "properties": {"n": {"type": ["integer", "null"], "default": None}},
        },
    },
    ReflectionAgent: DESCRIBED,
}
SYSTEM_MESSAGES: dict[Kind, str] = {
    CodeExecutorAgent: CodeExecutorAgent.DEFAULT_SYSTEM_MESSAGE,
    CodeActAgent: CODEACT_SYSTEM_MESSAGE,
    ReflectionAgent: REFLECTION_SYSTEM_MESSAGE,
}


@pytest.fixture(params=FIELDS, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


def made(kind: Kind, session: ConfinedSessionCodeExecutor | None = None, **settings: Any) -> Any:
    usual: dict[str, Any] = {"name": "agent", "model_client": replay("Hello.")}
    if kind is not ReflectionAgent:
        usual["code_executor"] = session or ConfinedSessionCodeExecutor(work_dir="coding")
    return kind(**usual | settings)


def through_yaml(model: ComponentModel) -> ComponentModel:
    text = yaml12.write(model.model_dump(mode="json", exclude_none=True))
    return ComponentModel.model_validate(yaml12.parse(text)[0])


def test_every_field_survives_dump_yaml_and_load(kind: Kind):
    # max_retries_on_error was lost by dump and load
    fields = FIELDS[kind]
    dumped = made(kind, model_context=BufferedChatCompletionContext(5, SAID), **fields).dump_component()
    expected = fields | {"handoffs": ["reviewer", FIELDS[CodeActAgent]["handoffs"][1].model_dump()]}
    assert {name: dumped.config[name] for name in fields} == {name: expected[name] for name in fields}
    runs = set[str]() if kind is ReflectionAgent else {"code_executor", *TOOL_FIELDS}
    all_fields = set(kind.component_config_schema.model_fields)
    assert set(fields) | PARTS | runs == all_fields, "nothing is left out of this test"
    read = through_yaml(dumped)
    assert read.model_dump(exclude_none=True) == dumped.model_dump(exclude_none=True)
    assert kind.load_component(read).dump_component() == dumped


@pytest.mark.parametrize("settings", [{}, {"system_message": ""}])
def test_so_do_the_defaults(kind: Kind, settings: dict[str, Any]):
    dumped = made(kind, **settings).dump_component()
    assert kind.load_component(through_yaml(dumped)).dump_component() == dumped
    assert dumped.provider == f"codeact_team.{kind.__name__}"


def test_a_config_without_a_system_message_gets_the_default_one(kind: Kind):
    # YAML that omits system_message lost the default
    dumped = made(kind).dump_component()
    for key in ("system_message", "description", "model_context"):
        del dumped.config[key]
    loaded = kind.load_component(dumped).dump_component()
    assert loaded.config["system_message"] == SYSTEM_MESSAGES[kind]


CONTEXTS: list[ChatCompletionContext] = [
    UnboundedChatCompletionContext(SAID),
    BufferedChatCompletionContext(5, SAID),
    HeadAndTailChatCompletionContext(3, 3, SAID),
    TokenLimitedChatCompletionContext(replay(), token_limit=100, initial_messages=SAID),
]


@pytest.mark.parametrize("context", mostly_long(CONTEXTS), ids=lambda context: type(context).__name__)
async def test_a_context_is_loaded_with_its_messages_and_reset_without(
    kind: Kind, context: ChatCompletionContext
):
    # buffered contexts reloaded messages as plain dicts
    dumped = made(kind, model_context=context).dump_component()
    loaded = kind.load_component(through_yaml(dumped))
    assert type(loaded.model_context) is type(context)
    assert await loaded.model_context.get_messages() == SAID
    assert loaded.dump_component() == dumped
    await loaded.on_reset(CancellationToken())
    assert await loaded.model_context.get_messages() == []


@pytest.mark.parametrize("change", [{"system": "?"}, {"description": 3}])
def test_a_config_with_a_wrong_or_unknown_key_is_refused(kind: Kind, change: dict[str, Any]):
    dumped = made(kind).dump_component()
    dumped.config |= change
    with pytest.raises(ValidationError, match=next(iter(change))):
        kind.load_component(dumped)


def test_each_field_of_a_config_is_an_argument_that_a_signature_shows(kind: Kind):
    parameters = inspect.signature(kind).parameters
    assert set(parameters) == set(kind.component_config_schema.model_fields)
    assert all(parameter.annotation is not parameter.empty for parameter in parameters.values())
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'max_retries'; did you mean"):
        made(kind, max_retries=3)


def test_a_part_that_cannot_be_dumped_is_named(kind: Kind):
    class Local(BufferedChatCompletionContext):
        component_provider_override = None

    with pytest.raises(SettingError, match=r"^model_context: Local cannot be dumped: "):
        made(kind, model_context=Local(3)).dump_component()


async def test_without_a_system_message_none_is_sent(kind: Kind, session: ConfinedSessionCodeExecutor):
    async with ScriptedServer([Json({"accepted": True}), Json({"accepted": True})]) as server:
        await turn(made(kind, session, model_client=server.client(), system_message=""))
    assert server.requests[0]["messages"][0]["role"] == "user"


async def test_memory_is_in_the_models_context_and_in_the_dump(
    kind: Kind, session: ConfinedSessionCodeExecutor
):
    memory = ListMemory()
    await memory.add(MemoryContent(content="The user likes metric units.", mime_type="text/plain"))
    reply = Json({"accepted": True}) if kind is ReflectionAgent else Text("It is 42.")
    async with ScriptedServer([reply]) as server:
        agent = made(kind, session, model_client=server.client(), memory=[memory, ListMemory()])
        told = await response(agent)
    assert "metric units" in str(contents(server.requests[0]))
    recalled = [event for event in told.inner_messages or () if isinstance(event, MemoryQueryEvent)]
    assert [event.content[0].content for event in recalled] == ["The user likes metric units."]
    assert len(agent.dump_component().config["memory"]) == 2
    assert kind.load_component(agent.dump_component()).dump_component() == agent.dump_component()
