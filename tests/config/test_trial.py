"""What loading refuses, validating refuses, without doing anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from codeact_team.config.loading import load_config, validate_config
from codeact_team.core.providers import DEFAULT_NAMESPACES, Policy
from codeact_team.core.scope import Scope
from codeact_team.errors import ConfigError

Write = Callable[..., Path]
AddModule = Callable[[str, str], None]


def part(provider: str, **config: object) -> dict[str, Any]:
    return {"provider": provider, "config": config}


def client(**config: object) -> dict[str, Any]:
    return part("OpenAIChatCompletionClient", model="gpt-4o", **config)


def session(**config: object) -> dict[str, Any]:
    return part("codeact_team.ConfinedSessionCodeExecutor", **config)


def actor(name: str = "actor", **config: object) -> dict[str, Any]:
    config = {"model_client": client(), "code_executor": session(), **config}
    return part("codeact_team.CodeActAgent", name=name, **config)


def runner(name: str = "runner", **config: object) -> dict[str, Any]:
    executor = part("codeact_team.DockerCommandLineCodeExecutor")
    return part("codeact_team.CodeExecutorAgent", name=name, **{"code_executor": executor, **config})


def team(*participants: object, kind: str = "RoundRobinGroupChat") -> dict[str, Any]:
    return part(f"autogen_agentchat.teams.{kind}", participants=participants)


COMMANDS = part("codeact_team.DockerCommandLineCodeExecutor")
NO_TOOLS = {
    "vision": False,
    "function_calling": False,
    "json_output": True,
    "structured_output": True,
    "family": "unknown",
}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (team(), "RoundRobinGroupChat cannot be made: At least one participant is required."),
        (team(runner(), runner()), "The participant names must be unique."),
        (team(team(runner("a")), team(runner("b"))), "The participant names must be unique."),
        (
            team(runner("not a name")),
            "config.participants.0: CodeExecutorAgent cannot be made: The agent name must be a valid Python identifier",
        ),
        (team(runner(), kind="Swarm"), "The first participant must be able to produce a handoff"),
        (runner(max_retries_on_error=1), "max_retries_on_error > 0 needs a model_client"),
        (runner(default_language="cobol"), "default_language is 'cobol'"),
        (runner(tools=["codeact_team.core.providers:check"]), "cannot call them; that needs a session"),
        (runner(approval_func="codeact_team.core.providers:chek"), "did you mean 'check'?"),
        (actor(code_executor=COMMANDS), "forgets the variables of each block"),
        (actor(max_reflections=1, max_steps=1), "there is no step to go back to"),
        (
            actor(model_client=client(model_info=NO_TOOLS), handoffs=["other"]),
            "the model of model_client cannot call tools",
        ),
        (
            part("autogen_core.model_context.BufferedChatCompletionContext", buffer_size=0),
            "buffer_size must be greater than 0",
        ),
    ],
)
def test_what_no_component_can_be_made_of_is_told_by_validating_as_by_loading(
    write: Write, monkeypatch: pytest.MonkeyPatch, document: object, message: str
) -> None:
    source = write(json.dumps(document))
    # no key is needed to validate
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError) as validating:
        validate_config(source)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with pytest.raises(ConfigError) as loading:
        load_config(source)
    assert message in str(validating.value)
    assert str(validating.value) == str(loading.value)


def test_all_that_cannot_be_made_is_told_together(write: Write) -> None:
    document = team(runner("a b"), runner(default_language="cobol"), runner("c"), runner("c"))
    with pytest.raises(ConfigError) as caught:
        validate_config(write(json.dumps(document)))
    # what is wrong with the team cannot be known before its participants are right
    assert [problem.path for problem in caught.value.problems] == [
        "config.participants.0",
        "config.participants.1",
    ]


SPY = """
from autogen_agentchat.agents import UserProxyAgent
from autogen_core.memory import ListMemory
from autogen_core import InMemoryStore
class Agent(UserProxyAgent):
    def __init__(self, *args, **kwargs):
        raise AssertionError("made")
class Store(InMemoryStore):
    def __init__(self, *args, **kwargs):
        raise AssertionError("made")
class Notes(ListMemory):
    def __init__(self, *args, **kwargs):
        raise AssertionError("made")
"""


def test_nothing_of_others_is_made_and_what_holds_it_is_checked_as_far_as_it_can_be(
    write: Write, add_module: AddModule
) -> None:
    add_module("spying_parts", SPY)
    policy = Policy(DEFAULT_NAMESPACES | {"spying_parts"})
    agent = part("spying_parts.Agent", name="mine")
    notes = part("spying_parts.Notes")
    validate_config(write(json.dumps(team(agent, runner()))), policy=policy)
    with pytest.raises(ConfigError, match="The participant names must be unique"):
        validate_config(write(json.dumps(team(agent, runner("mine")))), policy=policy)
    cached = part(
        "autogen_ext.models.cache.ChatCompletionCache", client=client(), store=part("spying_parts.Store")
    )
    with pytest.raises(ConfigError, match=r"CodeActAgent cannot be made: .* identifier"):
        validate_config(write(json.dumps(team(actor("a b", model_client=cached)))), policy=policy)
    asks = part(
        "autogen_agentchat.agents.AssistantAgent",
        name="not a name",
        description="d",
        model_client=client(),
        memory=[notes],
        reflect_on_tool_use=False,
        tool_call_summary_format="{result}",
    )
    validate_config(write(json.dumps(asks)), policy=policy)


async def test_validating_makes_no_directory_and_leaves_nothing_to_a_scope(
    write: Write, tmp_path: Path
) -> None:
    docker = part("autogen_ext.code_executors.docker.DockerCommandLineCodeExecutor", work_dir="made")
    ours = part("codeact_team.DockerCommandLineCodeExecutor", work_dir="made")
    executors = [docker | {"config": {"work_dir": str(tmp_path / "made")}}, ours]
    async with Scope() as scope:
        for executor in executors:
            validate_config(write(json.dumps(runner(code_executor=executor))))
        assert scope.owned == ()
    assert not (tmp_path / "made").exists()


def test_a_validator_that_cannot_take_a_value_is_no_crash(write: Write) -> None:
    agent = part(
        "autogen_agentchat.agents.AssistantAgent",
        name="a",
        description="d",
        model_client=client(),
        handoffs=["other"],
        reflect_on_tool_use=False,
        tool_call_summary_format="{result}",
    )
    with pytest.raises(ConfigError, match=r"config\.handoffs: expected another kind of value"):
        validate_config(write(json.dumps(agent)))
