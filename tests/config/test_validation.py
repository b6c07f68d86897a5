from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codeact_team.config.loading import validate_config
from codeact_team.core.providers import DEFAULT_NAMESPACES, Policy
from codeact_team.errors import ConfigError, NotAllowedError

Write = Callable[..., Path]
AddModule = Callable[[str, str], None]

TEAM = """\
provider: autogen_agentchat.teams.RoundRobinGroupChat
config:
  participants:
    - provider: autogen_agentchat.agents.AssistantAgent
      config:
        name: coder
        description: Writes code.
        model_client:
          provider: OpenAIChatCompletionClient
          config:
            model: gpt-4o
            default_headers: {X-Other: plain}
        reflect_on_tool_use: false
        tool_call_summary_format: "{result}"
  termination_condition:
    provider: autogen_agentchat.conditions.MaxMessageTermination
    component_type: termination
    config: {max_messages: 3}
"""

EVIL = "raise SystemExit('imported')"
EVIL_COMPONENT = "{provider: evil_parts.X, config: {}}"


def refusal(source: Path, *overrides: str, policy: Policy | None = None, **environ: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        validate_config(source, overrides=overrides, policy=policy, environ=environ)
    return caught.value


def told(source: Path, *overrides: str, **environ: str) -> str:
    """The error's text, with the file's name alone."""
    return str(refusal(source, *overrides, policy=None, **environ)).replace(str(source), source.name)


def test_a_good_document_is_valid(write: Write) -> None:
    validate_config(write(TEAM), environ={})


# "loading a config imports any module it names, before any check"
@pytest.mark.parametrize(
    "document",
    [
        "provider: evil_parts.X\nconfig: {}\n",
        "provider: evil_parts.X\n",
        f"provider: autogen_agentchat.teams.RoundRobinGroupChat\nconfig: {{participants: [{EVIL_COMPONENT}]}}\n",
        TEAM.replace("{X-Other: plain}", f"{{a: [[{{b: {EVIL_COMPONENT}}}]]}}"),
        TEAM + f"extra: {EVIL_COMPONENT}\n",
        TEAM.replace("OpenAIChatCompletionClient", "evil_parts.Client"),
        TEAM.replace("OpenAIChatCompletionClient", "autogen_ext.evil_parts.Client").replace(
            "MaxMessageTermination", "Missing"
        )
        + f"more: {EVIL_COMPONENT}\n",
    ],
)
def test_nothing_outside_the_allow_list_is_imported(
    write: Write, add_module: AddModule, document: str
) -> None:
    add_module("evil_parts", EVIL)
    error = refusal(write(document))
    assert isinstance(error, NotAllowedError)
    assert "'evil_parts." in str(error)
    assert "evil_parts" not in sys.modules


def test_nothing_outside_the_allow_list_is_imported_for_an_override(
    write: Write, add_module: AddModule
) -> None:
    add_module("evil_parts", EVIL)
    target = "config.participants.coder.config.model_client"
    for override in (
        f"{target}.provider=evil_parts.X",
        f"{target}={EVIL_COMPONENT}",
        "provider=evil_parts.X",
    ):
        error = refusal(write(TEAM), override)
        assert isinstance(error, NotAllowedError)
        assert str(error).startswith("-s ")
        assert "evil_parts" not in sys.modules


def test_nothing_outside_the_allow_list_is_imported_for_an_environment_reference(
    write: Write, add_module: AddModule
) -> None:
    add_module("evil_parts", EVIL)
    for reference in ("${CLIENT}", "${EVIL}.X", "${UNSET:-evil_parts.X}"):
        source = write(TEAM.replace("OpenAIChatCompletionClient", reference))
        assert isinstance(refusal(source, CLIENT="evil_parts.X", EVIL="evil_parts"), NotAllowedError)
        assert "evil_parts" not in sys.modules


def test_a_module_of_the_standard_library_is_not_imported_either(write: Write) -> None:
    assert "antigravity" not in sys.modules
    assert isinstance(refusal(write("provider: antigravity.X\nconfig: {}")), NotAllowedError)
    assert "antigravity" not in sys.modules


def test_what_only_looks_a_little_like_a_component_is_data(write: Write) -> None:
    validate_config(write(TEAM.replace("{X-Other: plain}", "{provider: somebody.X}")), environ={})


def test_an_allowed_namespace_is_imported_and_checked(write: Write, add_module: AddModule) -> None:
    add_module(
        "my_parts",
        "from autogen_core import Component, ComponentBase\n"
        "from pydantic import BaseModel\n"
        "class Config(BaseModel):\n"
        "    size: int\n"
        "class Part(ComponentBase[BaseModel], Component[Config]):\n"
        "    component_type = 'part'\n"
        "    component_config_schema = Config\n",
    )
    source = write("provider: my_parts.Part\nconfig: {sise: 1}\n")
    policy = Policy(DEFAULT_NAMESPACES | {"my_parts"})
    assert "did you mean 'size'" in str(refusal(source, policy=policy))
    by_environment = refusal(source, AUTOGEN_ALLOWED_PROVIDER_NAMESPACES="my_parts")
    assert "did you mean 'size'" in str(by_environment)


# "a tool config runs its source at load"
def test_a_tool_with_source_code_is_refused_unless_asked_for(write: Write) -> None:
    tool = "{provider: autogen_core.tools.FunctionTool, config: {source_code: 'def t(x=1/0): pass', name: t, description: d, global_imports: [], has_cancellation_support: false}}"
    source = write(TEAM.replace("name: coder", f"name: coder\n        tools: [{tool}]"))
    error = refusal(source)
    assert isinstance(error, NotAllowedError)
    assert "config.participants.0.config.tools.0.provider" in str(error)
    assert "allow-unsafe" in str(error)
    validate_config(source, policy=Policy(allow_unsafe=True))


def test_a_program_on_this_machine_is_refused_unless_asked_for(write: Write) -> None:
    workbench = (
        "provider: autogen_ext.tools.mcp.McpWorkbench\nconfig:\n  server_params: {type: %s, command: sh}\n"
    )
    error = refusal(write(workbench % "StdioServerParams"))
    assert isinstance(error, NotAllowedError)
    assert (error.line, error.path) == (3, "config.server_params.type")
    over_http = "  server_params: {type: SseServerParams, url: http://localhost/sse}\n"
    validate_config(write(f"provider: autogen_ext.tools.mcp.McpWorkbench\nconfig:\n{over_http}"))


def test_a_component_whose_package_is_missing_says_which(write: Write) -> None:
    error = refusal(
        write("provider: autogen_ext.models.anthropic.AnthropicChatCompletionClient\nconfig: {}\n")
    )
    assert "needs the package 'anthropic', which is not installed" in str(error)


# "unknown keys are ignored"
def test_all_problems_are_told_together_with_file_line_path_and_the_nearest_key(write: Write) -> None:
    document = """\
provider: autogen_agentchat.agents.AssistantAgent
component_type: team
config:
  name: 3
  description: d
  sytem_message: x
  model_client:
    provider: OpenAIChatCompletionClient
    versoin: 1
    config:
      model: gpt-4o
      timeout: soon
      modl: x
      max_retries: [1]
      reasoning_effort: hihg
      response_format: {type: text, json_schema: null, strct: true}
      model_info: {family: unknown, vision: true, functon_calling: true}
  tools: 3
  reflect_on_tool_use: maybe
  max_tool_iterations: 0
"""
    assert told(write(document)).splitlines() == [
        "17 problems in team.yaml:",
        "  team.yaml:2: component_type: AssistantAgent is of the type 'agent', not 'team'; this key may be left out",
        "  team.yaml:3: config.tool_call_summary_format: is required",
        "  team.yaml:4: config.name: expected text, got 3",
        "  team.yaml:6: config.sytem_message: unknown key; did you mean 'system_message'?",
        "  team.yaml:9: config.model_client.versoin: unknown key; did you mean 'version'?",
        '  team.yaml:12: config.model_client.config.timeout: expected a number, got "soon"',
        "  team.yaml:13: config.model_client.config.modl: unknown key; did you mean 'model'?",
        "  team.yaml:14: config.model_client.config.max_retries: expected a whole number, got a list",
        (
            "  team.yaml:15: config.model_client.config.reasoning_effort: expected 'minimal', 'low', 'medium' or 'high', "
            "got \"hihg\"; did you mean 'high'?"
        ),
        "  team.yaml:16: config.model_client.config.response_format.strct: unknown key (known: type, json_schema)",
        "  team.yaml:17: config.model_client.config.model_info.function_calling: is required",
        "  team.yaml:17: config.model_client.config.model_info.json_output: is required",
        "  team.yaml:17: config.model_client.config.model_info.structured_output: is required",
        (
            "  team.yaml:17: config.model_client.config.model_info.functon_calling: unknown key; "
            "did you mean 'function_calling'?"
        ),
        "  team.yaml:18: config.tools: expected a list, got 3",
        '  team.yaml:19: config.reflect_on_tool_use: expected true or false, got "maybe"',
        "  team.yaml:20: config.max_tool_iterations: has to be greater than or equal to 1",
    ]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("provider: autogen_agentchat.agents.AssistantAgent\n", "team.yaml:1: config: is required"),
        ("config: {}\n", "team.yaml:1: provider: is required"),
        (
            "provider: autogen_core.memory.ListMemory\nconfig: []\n",
            "team.yaml:2: config: expected a mapping, got a list",
        ),
        ("provider: [x]\nconfig: {}\n", "team.yaml:1: provider: expected text, got a list"),
        (
            "provider: autogen_core.memory.ListMemory\nconfig:\n",
            "team.yaml:2: config: expected a mapping, got nothing",
        ),
        (
            "provider: autogen_core.memory.ListMemory\ncomponent_version: 9\nconfig: {}\n",
            "team.yaml:2: component_version: version 9 of ListMemory is not the installed one, 1",
        ),
        (
            "provider: autogen_agentchat.agents.AssistantAgent\ncomponent_version: 1\nconfig: {}\n",
            "team.yaml:2: component_version: version 1 of AssistantAgent is not the installed one, 2: write 2; most such configs need no other change",
        ),
    ],
)
def test_a_malformed_component_is_a_clear_error(write: Write, document: str, message: str) -> None:
    assert told(write(document)) == message


def test_a_nested_component_that_is_none_is_a_clear_error(write: Write) -> None:
    team = "provider: autogen_agentchat.teams.RoundRobinGroupChat\nconfig:\n  participants:\n"
    expected = (
        "config.participants.0: expected a component (a mapping with the keys 'provider' and 'config'), got"
    )
    assert told(write(team + "    - coder\n")) == f'team.yaml:4: {expected} "coder"'
    assert "config.participants.0.config: is required" in told(write(team + "    - {provider: x.Y}\n"))


def test_a_component_of_the_wrong_kind_is_found_without_making_it(write: Write) -> None:
    swapped = TEAM.replace("conditions.MaxMessageTermination", "agents.UserProxyAgent").replace(
        "component_type: termination\n    config: {max_messages: 3}", "config: {name: u}"
    )
    assert told(write(swapped)) == (
        "team.yaml:16: config.termination_condition.provider: "
        "expected a component of the kind TerminationCondition; UserProxyAgent is not one"
    )


def test_wrong_alternatives_of_a_union_are_told_once(write: Write) -> None:
    document = """\
provider: autogen_ext.models.replay.ReplayChatCompletionClient
config:
  chat_completions:
    - fine
    - 7
    - {content: x, finish_reason: stop, usage: {prompt_tokens: 1, completion_tokens: x}, cached: false}
"""
    assert told(write(document)) == (
        "2 problems in team.yaml:\n"
        "  team.yaml:5: config.chat_completions.1: expected text or a mapping, got 7\n"
        '  team.yaml:6: config.chat_completions.2.usage.completion_tokens: expected a whole number, got "x"'
    )


SHARED = """\
provider: autogen_agentchat.teams.RoundRobinGroupChat
config:
  participants:
    - provider: codeact_team.ReflectionAgent
      config:
        name: a
        model_client: &model
          provider: OpenAIChatCompletionClient
          config: {model: gpt-4o, modl: x, timeout: "${UNSET}"}
    - {provider: codeact_team.ReflectionAgent, config: {name: b, model_client: *model}}
    - {provider: codeact_team.ReflectionAgent, config: {name: c, model_client: *model}}
"""


def test_a_mistake_behind_an_anchor_is_told_once(write: Write) -> None:
    source = write(SHARED)
    where = "config.participants.{}.config.model_client.config.modl: unknown key; did you mean 'model'?"
    text = told(source)
    assert "2 problems" in text
    assert f"team.yaml:9: {where.format(0)}" in text
    # where an alias stands in for it, what is changed is another mistake
    place = "config.participants.b.config.model_client.config.modl"
    text = told(source, f"{place}=1", UNSET="1")
    assert text.count("unknown key") == 2
    assert f"-s {place}: unknown key" in text


def test_the_same_mistake_twice_in_one_line_is_told_twice(write: Write) -> None:
    text = told(write(json.dumps({"provider": "x.Y", "config": {}, "a": 1, "b": 1})))
    assert "a: unknown key" in text
    assert "b: unknown key" in text


def test_a_secret_is_not_shown_in_an_error(write: Write) -> None:
    source = write(TEAM.replace("model: gpt-4o", "model: gpt-4o\n            timeout: ${KEY}"))
    assert "expected a number, got ${KEY}" in told(source, KEY="s3cret")
    source = write(TEAM.replace("model: gpt-4o", "model: gpt-4o\n            api_key: [s3cret]"))
    assert "s3cret" not in told(source)


# "keys are masked in a dump, and loading that back sends the asterisks"
def test_a_masked_key_is_refused(write: Write) -> None:
    source = write(TEAM.replace("model: gpt-4o", "model: gpt-4o\n            api_key: '**********'"))
    assert "model_client.config.api_key: this secret was masked in a dump; write ${NAME}" in told(source)


def test_missing_variables_are_told_with_all_other_problems(write: Write) -> None:
    source = write(
        TEAM.replace("model: gpt-4o", "model: gpt-4o\n            timeout: ${UNSET_TIMEOUT}").replace(
            "3}", "x}"
        )
    )
    text = told(source)
    assert "2 problems" in text
    assert (
        "team.yaml:12: config.participants.0.config.model_client.config.timeout: the environment variable"
        in text
    )
    assert 'max_messages: expected a whole number, got "x"' in text


def test_an_error_inside_an_overridden_value_names_the_override_and_the_place_in_it(write: Write) -> None:
    value = "{provider: autogen_agentchat.conditions.MaxMessageTermination, config: {max_messages: x}}"
    assert told(write(TEAM), f"config.termination_condition={value}") == (
        '-s config.termination_condition: config.max_messages: expected a whole number, got "x"'
    )


def test_keys_are_suggested_for_a_schema_that_only_python_can_fill(
    write: Write, add_module: AddModule
) -> None:
    add_module(
        "callable_parts",
        "from collections.abc import Callable\n"
        "from autogen_core import Component, ComponentBase\n"
        "from pydantic import BaseModel\n"
        "class Config(BaseModel):\n"
        "    size: int = 1\n"
        "    call: Callable[[], int] | None = None\n"
        "class Part(ComponentBase[BaseModel], Component[Config]):\n"
        "    component_type = 'part'\n"
        "    component_config_schema = Config\n",
    )
    policy = Policy(DEFAULT_NAMESPACES | {"callable_parts"})
    source = write("provider: callable_parts.Part\nconfig: {sise: 1, call: f}\n")
    text = str(refusal(source, policy=policy))
    assert "config.sise: unknown key; did you mean 'size'?" in text
    assert 'config.call: expected a Python function, which a config cannot hold, got "f"' in text


def test_validating_makes_nothing(write: Write, add_module: AddModule) -> None:
    add_module(
        "loud_parts",
        "from autogen_core import Component, ComponentBase\n"
        "from pydantic import BaseModel\n"
        "class Config(BaseModel):\n"
        "    size: int = 1\n"
        "class Part(ComponentBase[BaseModel], Component[Config]):\n"
        "    component_type = 'part'\n"
        "    component_config_schema = Config\n"
        "    @classmethod\n"
        "    def _from_config(cls, config):\n"
        "        raise AssertionError('made')\n",
    )
    source = write("provider: loud_parts.Part\nconfig: {}\n")
    validate_config(source, policy=Policy(DEFAULT_NAMESPACES | {"loud_parts"}))


@given(st.text() | st.text("provider: config\n{}[]'\"&*!-", max_size=60))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_a_config_or_a_config_error(write: Write, text: str) -> None:
    with suppress(ConfigError):
        validate_config(write(text.encode("utf-8", "replace")), environ={})


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.sampled_from(["${X}", "**********", "x.Y"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["provider", "config", "name", "type", "participants", "model_client", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@given(
    st.sampled_from(["teams.RoundRobinGroupChat", "agents.AssistantAgent", "agents.SocietyOfMindAgent"]),
    VALUES,
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_data_is_a_config_or_a_config_error(write: Write, provider: str, config: object) -> None:
    document = json.dumps({"provider": f"autogen_agentchat.{provider}", "config": config})
    with suppress(ConfigError):
        validate_config(write(document), environ={})
