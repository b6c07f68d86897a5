"""Settings: what is refused, what is warned about, and what survives dump, YAML and load."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from autogen_core import ComponentModel
from pydantic import ValidationError
from support.agents import (
    Foreign,
    Streaming,
    replay,
    turn,
    yes,
)

from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.config import yaml12
from codeact_team.errors import SettingError
from codeact_team.executors.confined import ConfinedCommandLineCodeExecutor, ConfinedSessionCodeExecutor
from codeact_team.executors.docker import DockerCommandLineCodeExecutor


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


def test_sources_that_have_no_effect_are_warned_of_since_autogen_takes_them():
    with pytest.warns(UserWarning, match="sources of executor has no effect with a model_client"):
        agent = agent_of(sources=["coder"], model_client=replay())
    assert CodeExecutorAgent.component_config_schema(**agent.dump_component().config).sources == ["coder"]


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


def test_a_part_that_cannot_be_dumped_is_named():
    with pytest.raises(SettingError, match=r"^code_executor: Streaming cannot be dumped: "):
        CodeExecutorAgent("executor", Streaming()).dump_component()
