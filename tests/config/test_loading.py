from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from autogen_agentchat.conditions import TokenUsageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.model_context import BufferedChatCompletionContext
from autogen_core.models import SystemMessage, UserMessage
from autogen_core.tools import FunctionTool
from autogen_ext.models.openai import OpenAIChatCompletionClient

from codeact_team.config.loading import load_config
from codeact_team.core.providers import DEFAULT_NAMESPACES, Policy
from codeact_team.errors import ConfigError, NotAllowedError, SandboxError

Write = Callable[..., Path]
AddModule = Callable[[str, str], None]

TEAM = """\
provider: autogen_agentchat.teams.RoundRobinGroupChat
config:
  participants:
    - provider: autogen_agentchat.agents.UserProxyAgent
      config: {name: first}
    - provider: autogen_agentchat.teams.RoundRobinGroupChat
      config:
        name: inner
        participants:
          - provider: autogen_agentchat.agents.AssistantAgent
            config:
              name: second
              description: d
              reflect_on_tool_use: false
              tool_call_summary_format: "{result}"
              model_client:
                provider: autogen_ext.models.replay.ReplayChatCompletionClient
                config: {chat_completions: [hello]}
        termination_condition:
          provider: autogen_agentchat.conditions.MaxMessageTermination
          config: {max_messages: 1}
"""

PART = """
from autogen_core import Component, ComponentBase
from pydantic import BaseModel
class Config(BaseModel):
    size: int = 1
class Part(ComponentBase[BaseModel], Component[Config]):
    component_type = "part"
    component_config_schema = Config
    @classmethod
    def _from_config(cls, config):
"""


# "a team takes what does not say that it is a team for an agent"
def test_a_nested_team_needs_no_component_type(write: Write) -> None:
    assert isinstance(load_config(write(TEAM)), RoundRobinGroupChat)


def test_references_overrides_and_short_names_reach_the_component(write: Write) -> None:
    source = write(
        "provider: openai_chat_completion_client\nconfig: {model: gpt-4o, api_key: '${KEY}', max_retries: 1}"
    )
    client = load_config(
        source, overrides=["config.max_retries=${RETRIES}"], environ={"KEY": "k-1", "RETRIES": "4"}
    )
    assert isinstance(client, OpenAIChatCompletionClient)
    config = client.dump_component().config
    assert config["api_key"].get_secret_value() == "k-1"
    assert config["max_retries"] == 4


# "buffered contexts reload messages as plain dicts"
async def test_a_buffered_context_loads_its_messages_as_messages(write: Write) -> None:
    context = load_config(
        write(
            "provider: autogen_core.model_context.BufferedChatCompletionContext\n"
            "config:\n"
            "  buffer_size: 5\n"
            "  initial_messages:\n"
            "    - {type: SystemMessage, content: be brief}\n"
            "    - {type: UserMessage, content: hi, source: user}\n"
        )
    )
    assert isinstance(context, BufferedChatCompletionContext)
    assert await context.get_messages() == [
        SystemMessage(content="be brief"),
        UserMessage(content="hi", source="user"),
    ]
    model = context.dump_component()
    assert model.provider == "autogen_core.model_context.BufferedChatCompletionContext"
    assert model.label == "BufferedChatCompletionContext"


def test_a_required_key_that_may_be_null_may_be_left_out(write: Write) -> None:
    source = write(
        "provider: autogen_agentchat.conditions.TokenUsageTermination\nconfig: {max_total_token: 9}\n"
    )
    assert isinstance(load_config(source), TokenUsageTermination)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["config.participants.inner.config.participants.second.config.name=no identifier"],
            (
                "team.yaml:10: config.participants.1.config.participants.0: AssistantAgent cannot be made: "
                "The agent name must be a valid Python identifier."
            ),
        ),
        (
            ["config.participants.0.config.name=inner"],
            "team.yaml:1: RoundRobinGroupChat cannot be made: The participant names must be unique.",
        ),
    ],
)
def test_what_a_constructor_refuses_is_told_with_the_component(
    write: Write, overrides: list[str], message: str
) -> None:
    source = write(TEAM)
    with pytest.raises(ConfigError) as caught:
        load_config(source, overrides=overrides)
    assert str(caught.value).replace(str(source), source.name) == message


def test_a_missing_key_is_a_clear_error(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("OPENAI_"):
            monkeypatch.delenv(name)
    source = write("provider: OpenAIChatCompletionClient\nconfig: {model: gpt-4o}\n")
    with pytest.raises(
        ConfigError, match=r"team\.yaml:1: OpenAIChatCompletionClient cannot be made.*OPENAI_API_KEY"
    ):
        load_config(source)


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ("raise TypeError('no')", ConfigError, "Part cannot be made: no$"),
        ("raise OSError('no')", ConfigError, "Part cannot be made: OSError: no$"),
        ("Config(size='x')", ConfigError, "Part cannot be made: Input should be a valid integer"),
        ("pass", ConfigError, "Part cannot be made: Expected type does not match"),
        (
            "from codeact_team.errors import EngineError; raise EngineError('no engine')",
            SandboxError,
            "^no engine$",
        ),
        (
            "from codeact_team.core.providers import resolve_function; resolve_function('os:system')",
            NotAllowedError,
            "Part cannot be made: 'os.system' lies outside",
        ),
    ],
)
def test_each_kind_of_failure_keeps_its_kind(
    write: Write, add_module: AddModule, body: str, kind: type[Exception], message: str
) -> None:
    add_module("failing_parts", f"{PART}        {body}\n")
    source = write("provider: failing_parts.Part\nconfig: {}\n")
    with pytest.raises(kind, match=message):
        load_config(source, policy=Policy(DEFAULT_NAMESPACES | {"failing_parts"}))


def test_a_load_that_fails_makes_each_component_once_and_tells_of_all_that_fail(
    write: Write, add_module: AddModule
) -> None:
    add_module(
        "counted_parts",
        "from autogen_ext.models.replay import ReplayChatCompletionClient\n"
        "class Client(ReplayChatCompletionClient):\n"
        "    made = 0\n"
        "    def __init__(self, *args, **kwargs):\n"
        "        Client.made += 1\n"
        "        super().__init__(*args, **kwargs)\n",
    )
    text = TEAM.replace("autogen_ext.models.replay.Replay", "counted_parts.").replace(
        "counted_parts.ChatCompletionClient", "counted_parts.Client"
    )
    names = ["config.participants.first", "config.participants.inner.config.participants.second"]
    with pytest.raises(ConfigError) as caught:
        load_config(
            write(text),
            overrides=[f"{name}.config.name=no identifier" for name in names],
            policy=Policy(DEFAULT_NAMESPACES | {"counted_parts"}),
        )
    assert [problem.path for problem in caught.value.problems] == [
        "config.participants.0",
        "config.participants.1.config.participants.0",
    ]
    assert sys.modules["counted_parts"].Client.made == 1


def test_the_policy_is_in_force_while_components_are_made(
    write: Write, add_module: AddModule, monkeypatch: pytest.MonkeyPatch
) -> None:
    # a newer AutoGen has an allow-list of its own, which only its variable extends
    monkeypatch.setenv("AUTOGEN_ALLOWED_PROVIDER_NAMESPACES", "mine")
    add_module("helper_functions", "def approve(): return True")
    add_module(
        "policy_parts",
        f"{PART}"
        "        import os\n"
        "        from codeact_team.core.providers import resolve_function\n"
        "        part = cls()\n"
        "        part.approved = resolve_function('helper_functions:approve')()\n"
        "        part.trusted = os.environ['AUTOGEN_ALLOWED_PROVIDER_NAMESPACES'].split(',')\n"
        "        return part\n",
    )
    source = write("provider: policy_parts.Part\nconfig: {}\n")
    policy = Policy(DEFAULT_NAMESPACES | {"policy_parts", "helper_functions"})
    part = load_config(source, policy=policy)
    assert vars(part) == {"approved": True, "trusted": sorted(policy.namespaces)}
    assert os.environ["AUTOGEN_ALLOWED_PROVIDER_NAMESPACES"] == "mine"
    monkeypatch.delenv("AUTOGEN_ALLOWED_PROVIDER_NAMESPACES")
    load_config(source, policy=policy)
    assert "AUTOGEN_ALLOWED_PROVIDER_NAMESPACES" not in os.environ


def test_an_unsafe_tool_loads_where_asked_for(write: Write) -> None:
    source = write(
        "provider: autogen_core.tools.FunctionTool\n"
        "config:\n"
        "  {source_code: 'def f(): return 1', name: f, description: d, global_imports: [], "
        "has_cancellation_support: false}\n"
    )
    with pytest.raises(NotAllowedError):
        load_config(source)
    with pytest.warns(UserWarning, match="SECURITY"):
        assert isinstance(load_config(source, policy=Policy(allow_unsafe=True)), FunctionTool)


def test_an_environment_variable_allows_a_namespace(write: Write, add_module: AddModule) -> None:
    add_module("variable_parts", f"{PART}        return cls()\n")
    source = write("provider: variable_parts.Part\nconfig: {}\n")
    with pytest.raises(NotAllowedError):
        load_config(source, environ={})
    assert "variable_parts" not in sys.modules
    assert load_config(source, environ={"AUTOGEN_ALLOWED_PROVIDER_NAMESPACES": "variable_parts"})
