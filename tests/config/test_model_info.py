"""Models that are in no table of AutoGen's."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from autogen_core.models import ChatCompletionClient
from support.openai_server import ScriptedServer, Text

from codeact_team.config.dumping import dump_config
from codeact_team.config.loading import load_config, validate_config
from codeact_team.errors import ConfigError
from codeact_team.runs.opening import open_team

Write = Callable[..., Path]
Log = pytest.LogCaptureFixture


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-a-test")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def client(model: str, **config: object) -> str:
    return json.dumps({"provider": "OpenAIChatCompletionClient", "config": {"model": model, **config}})


def loaded(source: Path, **environ: str) -> ChatCompletionClient:
    component = load_config(source, environ=environ)
    assert isinstance(component, ChatCompletionClient)
    return component


NONE: set[str] = set()


@pytest.mark.parametrize(
    ("model", "base_url", "able", "unable"),
    [
        ("gpt-5.1", None, {"vision", "function_calling", "json_output", "structured_output"}, NONE),
        ("o5-mini", None, {"vision", "function_calling", "json_output", "structured_output"}, NONE),
        ("ft:gpt-4o:me::x1", None, {"structured_output"}, NONE),
        ("gemini-3-pro", None, {"vision", "structured_output"}, {"multiple_system_messages"}),
        ("claude-haiku-4-5", None, {"vision", "function_calling"}, {"json_output", "structured_output"}),
        ("anthropic/claude-haiku-4.5", "http://localhost:1/v1", {"vision"}, {"structured_output"}),
        ("openai/gpt-oss-20b", "http://localhost:1/v1", {"function_calling"}, {"vision"}),
        ("qwen3-coder", "http://localhost:1/v1", {"function_calling"}, {"vision", "structured_output"}),
        # the table has the last word
        ("o1-mini", None, NONE, {"function_calling"}),
    ],
)
def test_a_model_that_no_table_lists_can_what_its_maker_s_models_can(
    write: Write, model: str, base_url: str | None, able: set[str], unable: set[str]
) -> None:
    source = write(client(model, **({"base_url": base_url} if base_url else {})))
    validate_config(source)
    info: dict[str, Any] = {**loaded(source).model_info}
    assert {name: info.get(name, False) for name in able | unable} == {
        **dict.fromkeys(able, True),
        **dict.fromkeys(unable, False),
    }


def test_a_server_in_the_environment_is_a_server(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(client("qwen3-coder"))
    with pytest.raises(ConfigError, match="does not know the model 'qwen3-coder'"):
        load_config(source)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:1/v1")
    assert loaded(source).model_info["function_calling"]


def test_where_nothing_can_be_assumed_validating_names_the_model_and_what_to_do(write: Write) -> None:
    source = write(client("qwen3-coder"))
    with pytest.raises(ConfigError) as caught:
        validate_config(source)
    assert caught.value.path == "config.model"
    assert caught.value.message == (
        "AutoGen does not know the model 'qwen3-coder': say what it can do by model_info, or where it is by base_url"
    )
    with pytest.raises(ConfigError, match=r"the model '\$\{MODEL\}'"):
        validate_config(write(client("${MODEL:-gpt-4o}")), environ={"MODEL": "qwen3-coder"})


def test_what_is_assumed_is_said_once(write: Write, caplog: Log) -> None:
    source = write(
        "provider: autogen_agentchat.teams.RoundRobinGroupChat\n"
        "config:\n"
        "  participants:\n"
        "    - provider: codeact_team.ReflectionAgent\n"
        "      config: {name: a, model_client: &m {provider: OpenAIChatCompletionClient, config: {model: gpt-5.1}}}\n"
        "    - {provider: codeact_team.ReflectionAgent, config: {name: b, model_client: *m}}\n"
    )
    with caplog.at_level(logging.WARNING, "codeact_team"):
        team = load_config(source)
    (message,) = caplog.messages
    assert message == (
        "AutoGen does not know the model 'gpt-5.1': it is taken for one with vision, function_calling, json_output, "
        "structured_output; model_info says otherwise"
    )
    # a dump says it, so nothing is assumed of that
    caplog.clear()
    dumped = dump_config(team)
    assert dump_config(load_config(write(dumped))) == dumped
    assert caplog.messages == []


def test_what_the_config_says_is_taken_as_it_is(write: Write, caplog: Log) -> None:
    info = {
        "vision": False,
        "function_calling": False,
        "json_output": False,
        "structured_output": False,
        "family": "r1",
    }
    assert loaded(write(client("gpt-5.1", model_info=info))).model_info == info
    assert caplog.messages == []


@pytest.mark.long
@pytest.mark.usefixtures("offline_packages")
async def test_the_shipped_config_for_a_key_without_docker_runs_with_a_new_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    replies = [Text("```python\nfinal_answer(6 * 7)\n```")]
    async with ScriptedServer(replies) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
        monkeypatch.setenv("OPENAI_MODEL", "gpt-5.1")
        overrides = ["config.code_executor.config.confinement=best_effort"]
        async with open_team("codeact-confined", overrides=overrides) as agent:
            result = await agent.run(task="What is six times seven?")
        assert server.requests[0]["model"] == "gpt-5.1"
    assert result.messages[-1].to_text() == "42"
