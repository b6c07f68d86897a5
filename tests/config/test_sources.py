"""A config is a file, a text, a mapping, or what a component dumps."""

from __future__ import annotations

import json
from collections import UserDict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.agents import AssistantAgent, SocietyOfMindAgent, UserProxyAgent
from autogen_agentchat.conditions import MaxMessageTermination, TextMentionTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core import ComponentBase, ComponentModel
from autogen_core.model_context import BufferedChatCompletionContext
from autogen_core.models import UserMessage
from autogen_ext.models.openai import OpenAIChatCompletionClient
from pydantic import BaseModel
from support.agents import replay

from codeact_team.agents.code_executor import CodeExecutorAgent
from codeact_team.config.dumping import dump_config
from codeact_team.config.loading import load_config, validate_config
from codeact_team.errors import ConfigError, NotAllowedError
from codeact_team.executors.confined import ConfinedCommandLineCodeExecutor
from codeact_team.runs.opening import open_team

Write = Callable[..., Path]

TEAM = """\
provider: autogen_agentchat.teams.RoundRobinGroupChat
config:
  max_turns: 3
  participants:
    - {provider: autogen_agentchat.agents.UserProxyAgent, config: {name: "${NAME}"}}
"""
MAPPING: dict[str, Any] = {
    "provider": "autogen_agentchat.teams.RoundRobinGroupChat",
    "config": {
        "max_turns": 3,
        "participants": [
            {"provider": "autogen_agentchat.agents.UserProxyAgent", "config": {"name": "${NAME}"}}
        ],
    },
}


def test_a_mapping_holds_no_live_parts() -> None:
    # which constructors are given under the same names
    for field, value in (("model_client", replay()), ("approval_func", print)):
        config = {"name": "actor", "model_client": replay().dump_component(), field: value}
        config["code_executor"] = ConfinedCommandLineCodeExecutor().dump_component()
        source = {"provider": "codeact_team.CodeExecutorAgent", "config": config}
        with pytest.raises(ConfigError, match=rf"config\.{field}: expected"):
            validate_config(source)


@pytest.mark.parametrize(
    "source",
    [TEAM, json.dumps(MAPPING), f"\n {json.dumps(MAPPING)}", MAPPING, UserDict(MAPPING)],
    ids=["YAML", "JSON", "JSON after blanks", "mapping", "another mapping"],
)
def test_text_and_mappings_are_configs_with_references_and_overrides(source: Any) -> None:
    before = json.dumps(MAPPING)
    validate_config(source, environ={"NAME": "me"})
    team = load_config(source, overrides=["config.max_turns=${TURNS}"], environ={"NAME": "me", "TURNS": "4"})
    dumped = dump_config(team)
    assert "max_turns: 4\n" in dumped
    assert "name: ${NAME}\n" in dumped
    assert json.dumps(MAPPING) == before
    with pytest.raises(ConfigError) as caught:
        validate_config(source, overrides=["config.max_turns=1"], environ={})
    assert "<config>" in str(caught.value)
    assert "config.participants.0.config.name: the environment variable NAME" in str(caught.value)


def team() -> RoundRobinGroupChat:
    client = OpenAIChatCompletionClient(model="gpt-4o", api_key="a-key-given-in-python")
    context = BufferedChatCompletionContext(4, [UserMessage(content="print ${HOME}", source="user")])
    coder = AssistantAgent("coder", client, model_context=context, system_message="Write ${VARIABLES}.")
    mind = SocietyOfMindAgent("mind", RoundRobinGroupChat([UserProxyAgent("user")]), client)
    runner = CodeExecutorAgent("runner", ConfinedCommandLineCodeExecutor(work_dir="coding"))
    ending = MaxMessageTermination(9) | TextMentionTermination("DONE", sources=["coder"])
    return RoundRobinGroupChat([coder, mind, runner], termination_condition=ending)


def test_what_components_dump_loads_as_autogen_loads_it() -> None:
    model = team().dump_component()
    validate_config(model)
    # keys stay where they are, and no text is taken for a reference: a message could name any variable
    loaded = load_config(model)
    assert plain(loaded) == plain(RoundRobinGroupChat.load_component(model))
    assert plain(loaded)["config"]["participants"][0]["config"]["system_message"] == "Write ${VARIABLES}."


def plain(component: ComponentBase[BaseModel]) -> dict[str, Any]:
    return component.dump_component().model_dump()


def test_a_component_is_found_in_whatever_holds_it() -> None:
    evil: dict[str, Any] = {"provider": "evil_parts.X", "config": {}}
    holders: tuple[Any, ...] = ((evil,), deque([evil]), [UserDict(evil)], [ComponentModel(**evil)])
    for held in holders:
        source = {**MAPPING, "config": {"participants": held}}
        with pytest.raises(NotAllowedError, match=r"'evil_parts\.X' lies outside"):
            validate_config(source)
    with pytest.raises(ConfigError, match="<config>: the key 1 is not text"):
        validate_config({**MAPPING, "config": {1: 2}})


async def test_a_team_is_opened_from_a_mapping() -> None:
    source = {
        **MAPPING,
        "config": {"participants": [RoundRobinGroupChat([UserProxyAgent("me")]).dump_component()]},
    }
    async with open_team(source) as opened:
        assert isinstance(opened, RoundRobinGroupChat)
    with pytest.raises(ConfigError, match="<config>: a ListMemory cannot run a task"):
        async with open_team({"provider": "autogen_core.memory.ListMemory", "config": {}}):
            pass
