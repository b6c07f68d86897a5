from __future__ import annotations

import functools
import importlib
import inspect
from typing import Any

import jsonschema_rs
import pytest
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.base import ChatAgent, TerminationCondition
from autogen_agentchat.conditions import MaxMessageTermination, TextMentionTermination, TokenUsageTermination
from autogen_agentchat.teams import RoundRobinGroupChat
from autogen_core.model_context import BufferedChatCompletionContext
from autogen_core.models import UserMessage
from autogen_ext.models.replay import ReplayChatCompletionClient
from jsonschema import Draft202012Validator

from codeact_team.config import yaml12
from codeact_team.config.dumping import dump_config
from codeact_team.config.schema import config_schema
from codeact_team.core.providers import is_loadable

schema = functools.cache(config_schema)


@functools.cache
def validator() -> Draft202012Validator:
    return Draft202012Validator(schema())


TEAM = """\
provider: autogen_agentchat.teams.RoundRobinGroupChat
config:
  max_turns: ${TURNS:-3}
  emit_team_events: ${EVENTS}
  participants:
    - provider: autogen_agentchat.agents.AssistantAgent
      component_type: agent
      label: null
      config:
        name: coder
        description: Writes code.
        model_client:
          provider: OpenAIChatCompletionClient
          config: {model: gpt-4o, api_key: "${KEY}", reasoning_effort: "${EFFORT}", temperature: 0.5}
        reflect_on_tool_use: false
        tool_call_summary_format: "{result}"
    - {provider: somebody.Agent, config: {anything: 1}}
    - {provider: "${AGENT}", config: {}}
  termination_condition: {provider: autogen_agentchat.conditions.TokenUsageTermination, config: {max_total_token: 9}}
"""


def problems(text: str) -> list[str]:
    data, _ = yaml12.parse(text)
    return [error.message for error in validator().iter_errors(data)]  # pyright: ignore[reportUnknownMemberType]


def test_the_schema_is_a_valid_one() -> None:
    jsonschema_rs.meta.validate(schema())
    assert schema()["$schema"] == "https://json-schema.org/draft/2020-12/schema"


def test_a_good_document_fits() -> None:
    assert problems(TEAM) == []


def test_a_dump_fits() -> None:
    context = BufferedChatCompletionContext(3, [UserMessage(content="x", source="y")])
    agent = AssistantAgent("a", ReplayChatCompletionClient(["x"]), model_context=context)
    end = MaxMessageTermination(1) | TextMentionTermination("x") & TokenUsageTermination(max_total_token=3)
    assert problems(dump_config(RoundRobinGroupChat([agent], termination_condition=end))) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("name: coder", "nam: coder"),
        ("name: coder", "name: coder\n        bogus: 1"),
        ("label: null", "labl: null"),
        ("max_turns: ${TURNS:-3}", "max_turns: many"),
        ("temperature: 0.5", "temperature: warm"),
        ("temperature: 0.5", "modl: x"),
        ("component_type: agent", "component_type: team"),
        ("agents.AssistantAgent", "agents.AssistentAgent"),
        ("conditions.TokenUsageTermination", "agents.UserProxyAgent"),
        ("OpenAIChatCompletionClient", "OpenAiChatCompletionClient"),
        ('reasoning_effort: "${EFFORT}"', "reasoning_effort: hihg"),
        ("config: {max_total_token: 9}", "confg: {max_total_token: 9}"),
        ("config: {max_total_token: 9}", "config: []"),
    ],
)
def test_a_mistake_does_not_fit(before: str, after: str) -> None:
    assert before in TEAM
    assert problems(TEAM.replace(before, after)) != []


def test_each_field_completes_what_fits_there() -> None:
    def providers(name: str) -> list[str]:
        return schema()["$defs"][name]["properties"]["provider"]["anyOf"][0]["enum"]

    assert "autogen_agentchat.agents.AssistantAgent" in providers(f"Component.{ChatAgent.__name__}")
    assert "autogen_agentchat.base.OrTerminationCondition" in providers(
        f"Component.{TerminationCondition.__name__}"
    )
    assert "autogen_agentchat.agents.AssistantAgent" not in providers(
        f"Component.{TerminationCondition.__name__}"
    )
    agent = schema()["$defs"]["AssistantAgentConfig"]["properties"]
    assert agent["model_client"] == {"$ref": "#/$defs/Component.ChatCompletionClient"}


def test_every_component_of_ours_is_known() -> None:
    package: Any = importlib.import_module("codeact_team")
    exported = [getattr(package, name) for name in getattr(package, "__all__", ())]
    ours = {
        thing.component_provider_override
        for thing in exported
        if inspect.isclass(thing) and is_loadable(thing)
    }
    assert ours <= set(schema()["$defs"]["Component"]["properties"]["provider"]["anyOf"][0]["enum"])


def test_components_are_described_in_markdown() -> None:
    known = schema()["$defs"]["Component"]["properties"]["provider"]["anyOf"][0]
    described = dict(zip(known["enum"], known["markdownEnumDescriptions"], strict=True))
    assert described["autogen_agentchat.conditions.MaxMessageTermination"].startswith(
        "Terminate the conversation"
    )
    assert "Refused unless asked for" in described["autogen_core.tools.FunctionTool"]
    assert all(":class:`" not in text and "\n" not in text for text in described.values())
