"""Settings: what is refused, and what survives dump, YAML and load."""

from __future__ import annotations

from typing import Any

import pytest
from autogen_agentchat.base import Handoff
from autogen_core import ComponentModel
from autogen_core.model_context import BufferedChatCompletionContext
from autogen_core.models import LLMMessage, UserMessage
from pydantic import ValidationError
from support.agents import TOOL_FIELDS, Foreign, answer, replay, yes
from support.codeact import agent_of, own_session, py
from support.openai_server import ScriptedServer, Text

from codeact_team.agents.codeact.agent import CodeActAgent
from codeact_team.agents.codeact.config import CODEACT_SYSTEM_MESSAGE, CodeActAgentConfig
from codeact_team.config import yaml12
from codeact_team.core.providers import Policy, using
from codeact_team.errors import SettingError
from codeact_team.executors.confined import ConfinedCommandLineCodeExecutor, ConfinedSessionCodeExecutor
from codeact_team.executors.docker import DockerSessionCodeExecutor


def made(**settings: Any) -> CodeActAgent:
    usual: dict[str, Any] = {
        "name": "coder",
        "model_client": replay("Hello."),
        "code_executor": ConfinedSessionCodeExecutor(work_dir="coding"),
    }
    return CodeActAgent(**usual | settings)


def through_yaml(model: ComponentModel) -> ComponentModel:
    text = yaml12.write(model.model_dump(mode="json", exclude_none=True))
    return ComponentModel.model_validate(yaml12.parse(text)[0])


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"max_steps": 0}, "max_steps is 0: it must be 1 or more"),
        ({"max_seconds": 0}, "max_seconds is 0"),
        ({"max_seconds": -1.5}, "max_seconds is -1.5"),
        ({"max_seconds": float("nan")}, "max_seconds is nan"),
        ({"max_seconds": float("inf")}, "max_seconds is inf"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"max_retries_on_error": -1}, "max_retries_on_error is -1: it must be 0 or more"),
        ({"max_reflections": -1}, "max_reflections is -1"),
        ({"attempts": 0}, "attempts is 0: it must be 1 or more"),
        ({"attempts": 33}, "attempts: Input should be less than or equal to 32"),
        ({"max_reflections": 1, "max_steps": 1}, "max_reflections has no effect with max_steps 1"),
        ({"output_schema": {"type": "number!"}}, "output_schema: schema.*type.*number!"),
        ({"output_schema": {"$ref": "#/$defs/none"}}, "output_schema: it refers to '#/\\$defs/none'"),
        ({"output_schema": [1]}, "output_schema: a JSON Schema is expected"),
        ({"output_schema": int}, "output_schema: a JSON Schema is expected"),
        ({"functions": ["os:getcwd"], "system_message": "Act."}, r"\$functions"),
        ({"handoffs": ["b", "b"]}, "handoffs: each must have a name of its own"),
        ({"handoffs": ["b"], "model_client": replay(function_calling=False)}, "cannot call tools"),
        ({"code_executor": ConfinedCommandLineCodeExecutor()}, "ConfinedCommandLineCodeExecutor forgets"),
        ({"code_executor": Foreign()}, "needs a session: DockerSessionCodeExecutor or Confined"),
        ({"name": "not a name"}, "identifier"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], text: str):
    # a negative, zero-time-out or contradictory setting was accepted
    with pytest.raises(ValueError, match=text) as caught:
        made(**settings)
    assert "name" in settings or isinstance(caught.value, SettingError)


@pytest.mark.parametrize(
    "config",
    [
        {"max_steps": 0},
        {"max_seconds": -1},
        {"max_tokens": "many"},
        {"max_retries_on_error": -1},
        {"max_reflections": -1},
        {"output_schema": "number"},
        {"output_schema": {"type": "number!"}},
        {"functions": ["os.getcwd"]},
        {"functions": ["os:import"]},
        {"handoffs": [{"name": "b"}]},
        {"max_retries": 3},
    ],
)
def test_a_config_with_a_wrong_or_unknown_key_is_refused(config: dict[str, Any]):
    dumped = made().dump_component()
    dumped.config |= config
    with pytest.raises((ValidationError, SettingError), match=next(iter(config))):
        CodeActAgent.load_component(dumped)


FIELDS: dict[str, Any] = {
    "functions": ["textwrap:dedent", "os.path:join"],
    "handoffs": ["reviewer", Handoff(target="b", name="to_b", description="For b.", message="Yours.")],
    "description": "Does things.",
    "system_message": "You act by code.\n$functions",
    "model_client_stream": True,
    "stream_output": True,
    "rollback_on_error": True,
    "max_steps": 7,
    "max_seconds": 90.5,
    "max_tokens": 10_000,
    "max_retries_on_error": 0,
    "max_pictures": 2,
    "max_reflections": 2,
    "attempts": 3,
    "output_schema": {"type": "object", "properties": {"n": {"type": ["integer", "null"], "default": None}}},
    "approval_func": "codeact_team.core.providers:did_you_mean",
}
SAID: list[LLMMessage] = [UserMessage(content="What is it?", source="user")]


def test_every_field_survives_dump_yaml_and_load():
    # max_retries_on_error was lost by dump and load
    dumped = made(model_context=BufferedChatCompletionContext(5, SAID), **FIELDS).dump_component()
    handoff = FIELDS["handoffs"][1].model_dump()
    assert {name: dumped.config[name] for name in FIELDS} == FIELDS | {"handoffs": ["reviewer", handoff]}
    parts = {"name", "code_executor", "model_client", "model_context", "memory", *TOOL_FIELDS}
    assert set(FIELDS) | parts == set(CodeActAgentConfig.model_fields), "nothing is left out of this test"
    read = through_yaml(dumped)
    assert read.model_dump(exclude_none=True) == dumped.model_dump(exclude_none=True)
    loaded = CodeActAgent.load_component(read)
    assert loaded.dump_component() == dumped


@pytest.mark.parametrize("settings", [{}, {"system_message": ""}, {"handoffs": []}])
def test_so_do_the_defaults(settings: dict[str, Any]):
    dumped = made(**settings).dump_component()
    assert CodeActAgent.load_component(through_yaml(dumped)).dump_component() == dumped
    assert dumped.provider == "codeact_team.CodeActAgent"


def test_a_config_that_omits_the_system_message_gets_the_default_one():
    # YAML that omits system_message lost the default
    dumped = made().dump_component()
    del dumped.config["system_message"]
    loaded = CodeActAgent.load_component(dumped)
    assert loaded.dump_component().config["system_message"] == CODEACT_SYSTEM_MESSAGE


async def test_a_loaded_buffered_context_holds_messages():
    # buffered contexts reloaded messages as plain dicts
    dumped = made(model_context=BufferedChatCompletionContext(5, SAID)).dump_component()
    assert await CodeActAgent.load_component(dumped).model_context.get_messages() == SAID


def add(a: int, b: int) -> int:
    return a + b


class Forwarding(Handoff):
    pass


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"functions": ["os:getcwd", add]}, "functions: 'add' is a live function.*module:function"),
        ({"approval_func": yes}, "approval_func: a function cannot be dumped.*module:function"),
        ({"handoffs": [Forwarding(target="b")]}, "handoffs: Forwarding to 'b' cannot be dumped"),
    ],
)
def test_what_cannot_be_dumped_is_named(settings: dict[str, Any], text: str):
    # approval functions stopped the whole team from being dumped, without saying what to do
    with pytest.raises(SettingError, match=f"^{text}"):
        made(**settings).dump_component()


@pytest.mark.parametrize("path", ["os.system", "nowhere.at:all", "function"])
def test_an_approval_function_that_is_not_there_is_refused(path: str):
    with pytest.raises(Exception, match=path.replace(":", ".")[:8]):
        made(approval_func=path)


def test_it_runs_in_docker_as_well():
    made(code_executor=DockerSessionCodeExecutor())


async def test_no_system_message_means_none():
    async with ScriptedServer([Text("Hello.")]) as server:
        await answer(made(model_client=server.client(), system_message=""))
    assert [message["role"] for message in server.requests[0]["messages"]] == ["user"]


def test_the_default_instructions_say_what_the_model_must_know():
    for words in (
        "```python",
        "live on",
        "last expression",
        "print",
        "final_answer(value)",
        "$sandbox",
        "data",
    ):
        assert words in CODEACT_SYSTEM_MESSAGE


async def test_a_loaded_agent_works():
    async with own_session() as executor:
        agent = agent_of(replay(py("print(6 * 7)"), py("final_answer(43)")), executor)
        dumped = agent.dump_component()
    with using(Policy()):
        loaded = CodeActAgent.load_component(through_yaml(dumped))
    assert (await answer(loaded)).content == "43"
    await loaded._loop.executor.stop()  # pyright: ignore[reportPrivateUsage]


def test_a_model_that_cannot_call_tools_is_fine_without_handoffs():
    made(model_client=replay(function_calling=False))
