"""Settings: what is refused, what is warned about, and what survives dump, YAML and load."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path
from typing import Any

import pytest
from autogen_core import ComponentModel
from autogen_core.model_context import (
    BufferedChatCompletionContext,
    ChatCompletionContext,
    HeadAndTailChatCompletionContext,
    TokenLimitedChatCompletionContext,
    UnboundedChatCompletionContext,
)
from autogen_core.models import AssistantMessage, LLMMessage, UserMessage
from pydantic import ValidationError
from support.agents import (
    PRINTS_42,
    TOOL_FIELDS,
    Foreign,
    Streaming,
    answer,
    confined,
    replay,
    turn,
    user,
    yes,
)

from codeact_team.agents.code_executor import CodeExecutorAgent, CodeExecutorAgentConfig
from codeact_team.agents.codeact.agent import CodeActAgent
from codeact_team.agents.reflection_agent import ReflectionAgent
from codeact_team.config import yaml12
from codeact_team.core.providers import Policy, using
from codeact_team.errors import SettingError
from codeact_team.executors.confined import ConfinedCommandLineCodeExecutor, ConfinedSessionCodeExecutor
from codeact_team.executors.docker import DockerCommandLineCodeExecutor

SAID: list[LLMMessage] = [
    UserMessage(content="What is it?", source="user"),
    AssistantMessage(content="It is 42.", source="executor"),
]


def through_yaml(model: ComponentModel) -> ComponentModel:
    text = yaml12.write(model.model_dump(mode="json", exclude_none=True))
    return ComponentModel.model_validate(yaml12.parse(text)[0])


def agent_of(**settings: Any) -> CodeExecutorAgent:
    return CodeExecutorAgent("executor", ConfinedSessionCodeExecutor(work_dir="coding"), **settings)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"max_retries_on_error": -1, "model_client": replay()}, "max_retries_on_error is -1"),
        ({"max_retries_on_error": 1}, "needs a model_client"),
        ({"code_from_messages": True}, "needs a model_client"),
        ({"supported_languages": []}, "supported_languages is empty"),
        ({"default_language": "ruby"}, "default_language is 'ruby', which is not among .*: python, sh"),
        ({"name": "not a name"}, "identifier"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], text: str):
    # negative and contradictory settings were accepted
    usual: dict[str, Any] = {"name": "executor", "code_executor": Streaming()}
    with pytest.raises(ValueError, match=text) as caught:
        CodeExecutorAgent(**usual | settings)
    assert "name" in settings or isinstance(caught.value, SettingError)


@pytest.mark.parametrize("kind", [CodeExecutorAgent, CodeActAgent, ReflectionAgent])
def test_each_field_of_a_config_is_an_argument_that_a_signature_shows(kind: Any):
    parameters = inspect.signature(kind).parameters
    assert set(parameters) == set(kind.component_config_schema.model_fields)
    assert all(parameter.annotation is not parameter.empty for parameter in parameters.values())


def test_arguments_that_there_are_not_are_refused_as_by_any_function():
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'max_retries'$"):
        agent_of(max_retries=3)


def test_sources_that_have_no_effect_are_warned_of_since_autogen_takes_them():
    with pytest.warns(UserWarning, match="sources of executor has no effect with a model_client"):
        agent = agent_of(sources=["coder"], model_client=replay())
    assert CodeExecutorAgent.component_config_schema(**agent.dump_component().config).sources == ["coder"]


@pytest.mark.parametrize("path", ["os.system", "nowhere.at:all", "function"])
def test_so_is_an_approval_function_that_is_not_there(path: str):
    with pytest.raises(Exception, match=path.replace(":", ".")[:8]):
        agent_of(approval_func=path)


@pytest.mark.parametrize(
    "config",
    [
        {"max_retries_on_error": -1},
        {"max_retries": 3},
        {"max_retries_on_error": "many"},
        {"sources": "coder"},
    ],
)
def test_a_config_with_a_wrong_or_unknown_key_is_refused(config: dict[str, Any]):
    dumped = agent_of().dump_component()
    dumped.config |= config
    with pytest.raises(ValidationError, match=next(iter(config))):
        CodeExecutorAgent.load_component(dumped)


@pytest.mark.parametrize("languages", [["python"], ["py"], ("sh", "python3")])
def test_a_default_language_may_be_given_by_any_of_its_names(languages: Any):
    agent_of(supported_languages=languages, default_language="python")


def test_unsandboxed_execution_without_approval_is_warned_about():
    with pytest.warns(UserWarning, match="No approval function set for CodeExecutorAgent") as caught:
        CodeExecutorAgent("executor", Foreign())
    assert caught[0].filename == __file__, "it points to who made the agent"


def test_sandboxed_or_approved_execution_is_not():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CodeExecutorAgent("executor", ConfinedCommandLineCodeExecutor())
        # which says itself what this machine does not enforce
        CodeExecutorAgent("executor", ConfinedCommandLineCodeExecutor(confinement="best_effort"))
        CodeExecutorAgent("executor", DockerCommandLineCodeExecutor())
        CodeExecutorAgent("executor", Foreign(), approval_func=yes)


FIELDS: dict[str, Any] = {
    "model_client_stream": True,
    "max_pictures": 2,
    "max_retries_on_error": 3,
    "description": "Runs things.",
    "system_message": "You write code.",
    "sources": ["coder", "user"],
    "supported_languages": ["python"],
    "approval_func": "codeact_team.core.providers:did_you_mean",
    "code_from_messages": True,
    "reflect": False,
    "default_language": "python",
    "stream_output": True,
    "rollback_on_error": True,
}


def test_every_field_survives_dump_yaml_and_load():
    # max_retries_on_error was lost by dump and load
    context = BufferedChatCompletionContext(5, SAID)
    agent = agent_of(model_client=replay("Hello."), model_context=context, **FIELDS)
    dumped = agent.dump_component()
    assert {name: dumped.config[name] for name in FIELDS} == FIELDS
    parts = {"name", "code_executor", "model_client", "model_context", "memory", *TOOL_FIELDS}
    assert set(FIELDS) | parts == set(CodeExecutorAgentConfig.model_fields), (
        "nothing is left out of this test"
    )
    read = through_yaml(dumped)
    assert read.model_dump(exclude_none=True) == dumped.model_dump(exclude_none=True)
    assert CodeExecutorAgent.load_component(read).dump_component() == dumped


@pytest.mark.parametrize("settings", [{}, {"model_client": replay("Hello.")}], ids=["no model", "a model"])
def test_so_do_the_defaults(settings: dict[str, Any]):
    dumped = agent_of(**settings).dump_component()
    loaded = CodeExecutorAgent.load_component(through_yaml(dumped))
    assert loaded.dump_component() == dumped
    assert dumped.provider == "codeact_team.CodeExecutorAgent"


async def test_a_config_without_a_system_message_gets_the_default_one():
    # YAML that omits system_message lost the default
    dumped = agent_of(model_client=replay("Hello.")).dump_component()
    del dumped.config["system_message"]
    loaded = CodeExecutorAgent.load_component(dumped)
    assert loaded.dump_component().config["system_message"] == CodeExecutorAgent.DEFAULT_SYSTEM_MESSAGE


@pytest.mark.parametrize("none", [None, ""])
async def test_no_system_message_stays_none(none: str | None):
    client = replay("Hello.")
    agent = agent_of(model_client=client, system_message=none)
    dumped = agent.dump_component()
    loaded = CodeExecutorAgent.load_component(through_yaml(dumped))
    assert loaded.dump_component() == dumped
    as_autogen_has_it = dumped.model_copy(update={"config": {**dumped.config, "system_message": None}})
    assert CodeExecutorAgent.load_component(as_autogen_has_it).dump_component() == dumped
    await turn(agent)
    assert [message.type for message in client.create_calls[0]["messages"]] == ["UserMessage"]


CONTEXTS: list[ChatCompletionContext] = [
    UnboundedChatCompletionContext(SAID),
    BufferedChatCompletionContext(5, SAID),
    HeadAndTailChatCompletionContext(3, 3, SAID),
    TokenLimitedChatCompletionContext(replay(), token_limit=100, initial_messages=SAID),
]


@pytest.mark.parametrize("context", CONTEXTS, ids=lambda context: type(context).__name__)
async def test_contexts_that_hold_messages_are_loaded_with_them(context: ChatCompletionContext):
    # buffered contexts reloaded messages as plain dicts
    dumped = agent_of(model_client=replay("Hello."), model_context=context).dump_component()
    loaded = CodeExecutorAgent.load_component(through_yaml(dumped))
    assert type(loaded.model_context) is type(context)
    assert await loaded.model_context.get_messages() == SAID
    assert loaded.dump_component() == dumped


async def test_a_loaded_agent_works(tmp_path: Path):
    async with confined(tmp_path) as executor:
        dumped = CodeExecutorAgent(
            "executor", executor, model_client=replay(PRINTS_42, "It is 42.")
        ).dump_component()
    with using(Policy()):
        loaded = CodeExecutorAgent.load_component(dumped)
    assert (await answer(loaded, user("What is it?"))).content == "It is 42."
    await loaded._code_executor.stop()  # pyright: ignore[reportPrivateUsage]


def test_a_part_that_cannot_be_dumped_is_named():
    with pytest.raises(SettingError, match=r"^code_executor: Streaming cannot be dumped: "):
        CodeExecutorAgent("executor", Streaming()).dump_component()
