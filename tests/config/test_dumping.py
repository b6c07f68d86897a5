from __future__ import annotations

import gc
import pathlib
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from enum import Enum
from typing import Any, cast

import pytest
from autogen_agentchat.agents import AssistantAgent, CodeExecutorAgent, SocietyOfMindAgent, UserProxyAgent
from autogen_agentchat.base import Handoff
from autogen_agentchat.conditions import MaxMessageTermination, TextMentionTermination, TokenUsageTermination
from autogen_agentchat.teams import RoundRobinGroupChat, SelectorGroupChat
from autogen_core import Component, ComponentBase, Image
from autogen_core.memory import ListMemory, MemoryContent
from autogen_core.model_context import BufferedChatCompletionContext, HeadAndTailChatCompletionContext
from autogen_core.models import (
    AssistantMessage,
    CreateResult,
    ModelInfo,
    RequestUsage,
    SystemMessage,
    UserMessage,
)
from autogen_ext.code_executors.docker import DockerCommandLineCodeExecutor
from autogen_ext.models.openai import OpenAIChatCompletionClient
from autogen_ext.models.replay import ReplayChatCompletionClient
from autogen_ext.tools.mcp import McpWorkbench
from PIL import Image as Pictures
from pydantic import BaseModel, SecretStr

from codeact_team.config import yaml12
from codeact_team.config.dumping import dump_config
from codeact_team.config.loading import load_config
from codeact_team.core.autogen_internals import components_in
from codeact_team.core.providers import DEFAULT_NAMESPACES, Policy
from codeact_team.errors import ConfigError

Write = Callable[..., pathlib.Path]

INFO: ModelInfo = {
    "family": "unknown",
    "vision": True,
    "function_calling": True,
    "json_output": True,
    "structured_output": False,
}


def replay() -> ReplayChatCompletionClient:
    usage = RequestUsage(prompt_tokens=1, completion_tokens=2)
    answer = CreateResult(
        finish_reason="stop", content="yes", usage=usage, cached=False, thought=" \n hm\t\n"
    )
    return ReplayChatCompletionClient(["plain ${NOT_A_REFERENCE} $${x}", answer], model_info=INFO)


def coder(name: str = "coder") -> AssistantAgent:
    context = BufferedChatCompletionContext(
        4,
        initial_messages=[
            SystemMessage(content="Line one\n  line two\n\nline four\n"),
            UserMessage(content=["look", Image(Pictures.new("RGB", (1, 1)))], source="user"),
            AssistantMessage(content="no", source="coder", thought="\u2028 \x85"),
        ],
    )
    return AssistantAgent(
        name,
        replay(),
        model_context=context,
        memory=[ListMemory("notes", [MemoryContent(content={"k": [1, 2.5]}, mime_type="application/json")])],
        handoffs=[Handoff(target="reviewer"), "user"],
        system_message=None,
        metadata={"yes": "no", "1": "0x10"},
    )


def team() -> RoundRobinGroupChat:
    reviewers = RoundRobinGroupChat(
        [UserProxyAgent("user")], name="reviewers", termination_condition=MaxMessageTermination(1)
    )
    mind = SocietyOfMindAgent("mind", RoundRobinGroupChat([coder("inner")], max_turns=2), replay())
    return RoundRobinGroupChat(
        [coder(), reviewers, mind],
        termination_condition=MaxMessageTermination(9)
        | (TextMentionTermination("DONE", sources=["coder"]) & TokenUsageTermination(max_total_token=1000)),
    )


@pytest.mark.parametrize(
    "make",
    [
        replay,
        coder,
        team,
        pytest.param(
            lambda: SelectorGroupChat([coder("a"), coder("b")], replay(), max_turns=3), marks=pytest.mark.long
        ),
        lambda: HeadAndTailChatCompletionContext(1, 2, [UserMessage(content="x", source="y")]),
        lambda: DockerCommandLineCodeExecutor(image="python:3-slim", timeout=7, extra_hosts={"a": "b"}),
        lambda: OpenAIChatCompletionClient(model="gpt-4o", temperature=0.5, stop=["a"], seed=1, timeout=3),
        pytest.param(
            lambda: OpenAIChatCompletionClient(
                model="mine", base_url="http://localhost:1/v1", model_info=INFO
            ),
            marks=pytest.mark.long,
        ),
    ],
)
def test_dump_load_dump_is_the_identity(
    write: Write, monkeypatch: pytest.MonkeyPatch, make: Callable[[], ComponentBase[BaseModel]]
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-from-the-environment")
    text = dump_config(make())
    assert "sk-from-the-environment" not in text
    loaded = load_config(write(text))
    assert dump_config(loaded) == text
    assert dump_config(load_config(write(dump_config(loaded)))) == text


def test_the_keys_of_a_component_are_in_a_fixed_order() -> None:
    text = dump_config(MaxMessageTermination(3))
    assert [line.partition(":")[0] for line in text.splitlines() if not line.startswith(" ")] == [
        "provider",
        "component_type",
        "version",
        "component_version",
        "description",
        "label",
        "config",
    ]


CLIENT = """\
provider: OpenAIChatCompletionClient
config:
  model: ${DUMP_MODEL:-gpt-4o}
  api_key: ${DUMP_KEY}
  base_url: http://me:${DUMP_PASSWORD}@localhost/v1?token=${DUMP_TOKEN}
  default_headers: {Authorization: 'Bearer ${DUMP_KEY}', X-Other: '${DUMP_KEY}', X-Plain: 'price $${5}'}
  max_retries: 3
"""
ENVIRON = {"DUMP_KEY": "sk-0123456789", "DUMP_PASSWORD": "pw", "DUMP_TOKEN": "t"}


# "keys are written in clear from headers and URLs", and masked keys come back as asterisks
def test_what_came_from_the_environment_is_written_as_its_reference(write: Write) -> None:
    client = load_config(write(CLIENT), environ=ENVIRON)
    agent = AssistantAgent("a", cast(OpenAIChatCompletionClient, client))
    text = dump_config(RoundRobinGroupChat([agent]))
    for value in ("sk-0123456789", "me:pw@", "***"):
        assert value not in text
    for line in (
        "model: ${DUMP_MODEL:-gpt-4o}",
        "api_key: ${DUMP_KEY}",
        "base_url: http://me:${DUMP_PASSWORD}@localhost/v1?token=${DUMP_TOKEN}",
        "Authorization: Bearer ${DUMP_KEY}",
        "X-Other: ${DUMP_KEY}",
        "X-Plain: price $${5}",
    ):
        assert f" {line}\n" in text
    assert dump_config(load_config(write(text), environ=ENVIRON)) == text


HTTP_TOOLS = """\
provider: autogen_ext.tools.mcp.McpWorkbench
config:
  server_params:
    type: StreamableHttpServerParams
    url: ${TOOLS_URL:-http://localhost/mcp}
    headers: {Authorization: 'Bearer ${TOOLS_KEY}', X-Turns: '${TURNS}', X-Seven: '7'}
"""


def test_a_loaded_part_is_dumped_with_its_references_wherever_it_is(write: Write) -> None:
    environ = {**ENVIRON, "TOOLS_KEY": "tk-0123456789", "TURNS": "7"}
    client, tools = (load_config(write(text), environ=environ) for text in (CLIENT, HTTP_TOOLS))
    agent = AssistantAgent("a", cast(OpenAIChatCompletionClient, client), workbench=cast(McpWorkbench, tools))
    text = dump_config(RoundRobinGroupChat([agent]))
    for line in ("api_key: ${DUMP_KEY}", "Authorization: Bearer ${TOOLS_KEY}", "X-Turns: ${TURNS}"):
        assert f" {line}\n" in text
    # a short value under another key is somebody else's
    assert " X-Seven: '7'\n" in text
    assert dump_config(load_config(write(text), environ=environ)) == text


def test_a_part_of_what_is_loaded_may_be_dumped_alone() -> None:
    config = {
        "name": "a",
        "description": "d",
        "reflect_on_tool_use": False,
        "tool_call_summary_format": "{result}",
        "model_client": yaml12.parse(CLIENT)[0],
        "workbench": [yaml12.parse(HTTP_TOOLS)[0]],
    }
    source = {"provider": "autogen_agentchat.agents.AssistantAgent", "config": config}
    agent = load_config(source, environ={**ENVIRON, "TOOLS_KEY": "tk-0123456789", "TURNS": "7"})
    # the workbench, and its wrapper
    dumped = [*{dump_config(part) for part in components_in(agent) if isinstance(part, McpWorkbench)}]
    assert len(dumped) == 1
    assert "Authorization: Bearer ${TOOLS_KEY}\n" in dumped[0]


def test_equal_values_of_two_variables_are_told_apart_by_their_places(write: Write) -> None:
    part = (
        "\n    - provider: autogen_agentchat.conditions.TextMentionTermination\n      config: {text: '${%s}'}"
    )
    source = "provider: autogen_agentchat.base.OrTerminationCondition\nconfig:\n  conditions:"
    ending = load_config(
        write(source + part % "FIRST" + part % "SECOND"), environ={"FIRST": "DONE", "SECOND": "DONE"}
    )
    dumped = dump_config(ending)
    assert 0 < dumped.find("text: ${FIRST}") < dumped.find("text: ${SECOND}")


def test_a_dump_does_not_depend_on_what_the_process_has_loaded_before(write: Write) -> None:
    config = "provider: autogen_agentchat.agents.UserProxyAgent\nconfig: {name: me, description: %s}\n"
    value = "a value that is long"
    before = dump_config(load_config(write(config % value)))
    other = load_config(write(config % "'${OTHER}'"), environ={"OTHER": value})
    assert "${OTHER}" in dump_config(other)
    assert dump_config(load_config(write(config % value))) == before
    # nor does a secret become the reference of another config
    loaded = load_config(write(CLIENT), environ=ENVIRON)
    assert "api_key: ${DUMP_KEY}" in dump_config(loaded)
    with pytest.raises(ConfigError, match="a secret is not written in clear"):
        dump_config(OpenAIChatCompletionClient(model="gpt-4o", api_key=ENVIRON["DUMP_KEY"]))


def test_a_value_from_the_environment_is_forgotten_with_its_component(write: Write) -> None:
    secret = "-".join(("held", "by", "nobody", "else"))
    held_here = sys.getrefcount(secret)
    agent = load_config(
        write(
            "provider: autogen_agentchat.agents.UserProxyAgent\nconfig: {name: me, description: '${SECRET}'}\n"
        ),
        environ={"SECRET": secret},
    )
    assert sys.getrefcount(secret) > held_here
    del agent
    gc.collect()
    assert sys.getrefcount(secret) == held_here


@pytest.mark.parametrize(
    ("settings", "path"),
    [
        ({"api_key": "sk-clear-1"}, "api_key"),
        ({"api_key": "k", "default_headers": {"authorization": "Bearer x"}}, "api_key"),
        ({"default_headers": {"Authorization": "Bearer clear-2"}}, "default_headers.Authorization"),
        ({"default_headers": {"X-Api-Key": "clear-3"}}, "default_headers.X-Api-Key"),
        ({"base_url": "https://me:clear-4@localhost/v1"}, "base_url"),
        ({"base_url": "https://localhost/v1?api_key=clear-5"}, "base_url"),
    ],
)
def test_a_secret_in_clear_is_refused_by_its_path(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], path: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "from-environment")
    agent = AssistantAgent("a", OpenAIChatCompletionClient(model="gpt-4o", **settings))
    with pytest.raises(ConfigError) as caught:
        dump_config(agent)
    assert str(caught.value).startswith(f"config.model_client.config.{path}: cannot be dumped: a secret")
    assert "${NAME}" in str(caught.value)
    assert "clear-" not in str(caught.value)


def test_what_cannot_be_dumped_says_so() -> None:
    def approve(request: object) -> Any:
        return request

    agent = CodeExecutorAgent("a", DockerCommandLineCodeExecutor(), approval_func=approve)
    with pytest.raises(ConfigError, match=r"RoundRobinGroupChat cannot be dumped: .*approval"):
        dump_config(RoundRobinGroupChat([agent]))


class Color(Enum):
    RED = "red"


class Inner(BaseModel):
    secret: SecretStr


class AnythingConfig(BaseModel):
    value: Any


class Anything(ComponentBase[BaseModel], Component[AnythingConfig]):
    component_type = "anything"
    component_config_schema = AnythingConfig

    def __init__(self, value: Any) -> None:
        self.value = value

    def _to_config(self) -> AnythingConfig:
        return AnythingConfig(value=self.value)

    @classmethod
    def _from_config(cls, config: AnythingConfig) -> Anything:
        return cls(config.value)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (pathlib.Path("a/b"), "a/b"),
        (datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), "2026-01-02T03:04:05Z"),
        (Color.RED, "red"),
        ((1, (2,)), [1, [2]]),
        ({3}, [3]),
        (b"text", "text"),
        ({"password": ""}, {"password": ""}),
        (1e300, 1e300),
    ],
)
def test_python_values_are_written_as_pydantic_reads_them(
    write: Write, value: object, written: object
) -> None:
    loaded = load_config(write(dump_config(Anything(value))), policy=Policy(DEFAULT_NAMESPACES | {__name__}))
    assert isinstance(loaded, Anything)
    assert loaded.value == written


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            {"a": [print]},
            "config.value.a.0: cannot be dumped: a builtin_function_or_method cannot be written to a config",
        ),
        (object(), "config.value: cannot be dumped: a object cannot be written to a config"),
        ({"a": {1: 2}}, "config.value.a: cannot be dumped: the key 1 is not text"),
        ([Inner(secret=SecretStr("x"))], "config.value.0.secret: cannot be dumped: a secret"),
        ("**********", "config.value: cannot be dumped: a secret"),
    ],
)
def test_what_has_no_form_in_a_config_is_named_by_its_path(value: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        dump_config(Anything(value))
    assert str(caught.value).startswith(message)
