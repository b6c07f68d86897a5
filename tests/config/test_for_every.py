"""Overrides for every component of a kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from autogen_core.code_executor import CodeExecutor
from autogen_core.memory import Memory
from autogen_core.models import ChatCompletionClient

from codeact_team.config.document import Document, walk
from codeact_team.config.dumping import dump_config
from codeact_team.config.loading import load_config, validate_config
from codeact_team.config.overrides import ForEvery, apply_for_every
from codeact_team.config.yaml12 import parse
from codeact_team.core.providers import Policy
from codeact_team.errors import ConfigError, NotAllowedError

Write = Callable[..., Path]

TEAM = """\
provider: autogen_agentchat.teams.RoundRobinGroupChat
config:
  participants:
    - provider: codeact_team.ReflectionAgent
      config:
        name: a
        model_client: &model
          provider: ${CLIENT:-OpenAIChatCompletionClient}
          config: {model: "${MODEL}"}
    - {provider: codeact_team.ReflectionAgent, config: {name: b, model_client: *model}}
    - provider: codeact_team.ReflectionAgent
      config:
        name: c
        model_client:
          provider: autogen_ext.models.cache.ChatCompletionCache
          config:
            client: {provider: OpenAIChatCompletionClient, config: {model: gpt-4o}}
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-a-test")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)


def model(name: str) -> ForEvery:
    return ForEvery(ChatCompletionClient, "model", name, "--model")


def server(url: str) -> ForEvery:
    return ForEvery(ChatCompletionClient, "base_url", url, "--base-url")


def client(provider: str = "OpenAIChatCompletionClient", **config: object) -> str:
    return json.dumps({"provider": provider, "config": config})


def loaded(source: Path, overrides: Sequence[str | ForEvery], **environ: str) -> Any:
    return parse(dump_config(load_config(source, overrides=overrides, environ=environ)))[0]


def all_of(key: str, data: Any) -> list[Any]:
    return [value for path, value in walk(data) if path[-1:] == (key,)]


def refusal(source: Path | str, *overrides: str | ForEvery) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        validate_config(source, overrides=overrides, environ={})
    return caught.value


def test_every_component_of_the_kind_gets_the_setting_wherever_it_is(write: Write) -> None:
    source = write(TEAM)
    # what a reference would have stood for is not needed any more
    assert all_of("model", loaded(source, [model("gpt-4.1")])) == ["gpt-4.1"] * 3
    assert all_of("model", loaded(source, [model("gpt-4.1"), model("o3")])) == ["o3"] * 3


def test_a_value_stands_for_itself(write: Write) -> None:
    written = loaded(write(TEAM), [model("gpt-4o-${MODEL}")], MODEL="x")
    # as a dump says it
    assert all_of("model", written) == ["gpt-4o-$${MODEL}"] * 3


def test_what_is_said_of_one_component_goes_before_what_is_said_of_all(write: Write) -> None:
    special = "config.participants.b.config.model_client.config"
    for one in (f"{special}.model=o3", f"{special}={{model: o3}}"):
        for overrides in ([one, model("gpt-4.1")], [model("gpt-4.1"), one]):
            assert all_of("model", loaded(write(TEAM), overrides)) == ["gpt-4.1", "o3", "gpt-4.1"]


def test_what_does_not_fit_is_told_once_and_names_the_override(write: Write) -> None:
    error = refusal(write(TEAM), ForEvery(ChatCompletionClient, "temperature", "hot", "--temperature"))
    texts = [str(problem) for problem in error.problems]
    assert sum(text.startswith("--temperature: ") for text in texts) == 1
    assert "hot" in next(text for text in texts if text.startswith("--temperature: "))
    unnamed = refusal(write(client(model="gpt-4o")), ForEvery(ChatCompletionClient, "temperature", "hot"))
    assert str(unnamed).startswith("temperature of every model client: ")


def test_where_nothing_is_of_the_kind_an_error_says_so(write: Write) -> None:
    source = write(client(model="gpt-4o"), "lone.yaml")
    for kind, words in ((CodeExecutor, "code executor"), (Memory, "Memory")):
        text = str(refusal(source, ForEvery(kind, "data", ["x.csv"], "--data")))
        assert text == f"--data: there is no {words} in {source}"


def test_a_component_that_does_not_take_the_setting_is_named(write: Write) -> None:
    data = ForEvery(CodeExecutor, "speed", 3, "--speed")
    error = refusal(Path(__file__).parents[2] / "configs" / "executor.yaml", data)
    assert error.file == "--speed"
    assert error.message.endswith("CodeExecutor does not take this: it has no setting 'speed'")


def test_recorded_answers_take_no_model() -> None:
    error = refusal("quickstart", model("gpt-4o"))
    assert (error.file, error.path) == ("--model", "config.participants.0.config.model_client")
    assert "its answers are recorded, and no model is asked" in error.message


def test_what_may_not_be_loaded_is_not_imported_to_find_out_its_kind(
    write: Write, add_module: Callable[[str, str], None]
) -> None:
    add_module("made_for_test", "raise SystemExit")
    assert isinstance(refusal(write(client("made_for_test.Client")), model("gpt-4o")), NotAllowedError)


def test_what_is_not_installed_is_told_as_ever(write: Write) -> None:
    source = write(client("autogen_ext.models.openai.NoSuchClient"))
    assert refusal(source, model("gpt-4o")).message == refusal(source).message


def test_a_client_is_given_a_server_under_the_name_that_it_has_for_it(write: Write) -> None:
    url = "http://localhost:11434/v1"
    assert all_of("base_url", loaded(write(TEAM), [model("gpt-4.1"), server(url)])) == [url] * 3
    config = {"model": "gpt-4o", "api_version": "1", "azure_endpoint": "x"}
    azure = Document("t.yaml", {"provider": "AzureOpenAIChatCompletionClient", "config": config})
    changed = apply_for_every(azure, [server(url)], Policy())
    assert changed.data["config"] == {**config, "azure_endpoint": url}


def test_what_a_config_says_of_its_model_goes_when_another_one_is_known(write: Write) -> None:
    info = {
        "vision": False,
        "function_calling": False,
        "json_output": False,
        "structured_output": False,
        "family": "unknown",
    }
    source = write(client(model="mine", model_info=info))
    for known in ("gpt-4o", "gpt-5.1"):
        assert all_of("structured_output", loaded(source, [model(known)])) in ([True], [])
    assert all_of("function_calling", loaded(source, [model("theirs")])) == [False]
    said = f"config.model_info={json.dumps(info)}"
    assert all_of("function_calling", loaded(source, [said, model("gpt-4o")])) == [False]
    of_all = ForEvery(ChatCompletionClient, "model_info", info)
    assert all_of("function_calling", loaded(source, [of_all, model("gpt-4o")])) == [False]


def test_a_model_that_is_not_known_is_an_error_that_names_the_override(write: Write) -> None:
    error = refusal(write(TEAM), model("qwen3"))
    assert str(error) == (
        "--model: AutoGen does not know the model 'qwen3': say what it can do by model_info, or where it is by base_url"
    )
    validate_config(write(TEAM), overrides=[model("qwen3"), server("http://localhost:1/v1")], environ={})


def test_a_server_of_ones_own_needs_no_key_and_a_dump_holds_none(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    overrides = [model("qwen3"), server("http://localhost:1/v1")]
    assert all_of("api_key", loaded(write(TEAM), overrides)) == ["${OPENAI_API_KEY:-none}"] * 3
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-a-test")
    assert all_of("api_key", loaded(write(TEAM), overrides)) == []


def test_a_client_without_a_key_is_told_in_one_sentence(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)

    def told(**config: str) -> str:
        with pytest.raises(ConfigError) as caught:
            load_config(write(client("OpenAIChatCompletionClient", **config)))
        return caught.value.message.removeprefix("OpenAIChatCompletionClient cannot be made: ")

    assert told(model="gpt-4o") == (
        "the model needs a key, and OPENAI_API_KEY is not set: set it to your key, or give a server that wants none by "
        "--base-url"
    )
    assert told(model="gemini-2.5-pro").startswith(
        "the model needs a key, and GEMINI_API_KEY and OPENAI_API_KEY are not set: set one to your key"
    )
    assert told(model="gpt-4o", base_url="http://localhost:1/v1").endswith(
        "set it to your key, or to anything if the server wants none"
    )


ALONE = """\
provider: codeact_team.CodeActAgent
config:
  name: coder
  model_client: {provider: OpenAIChatCompletionClient, config: {model: gpt-4o}}
  code_executor: {provider: codeact_team.ConfinedSessionCodeExecutor, config: %s}
"""


@pytest.mark.parametrize(
    ("settings", "single", "packages"),
    [
        ("{}", (), ["openpyxl", "lxml"]),
        ("{packages: [pandas, '${MORE}']}", (), ["pandas", "${MORE}", "openpyxl", "lxml"]),
        (
            "{packages: [pandas]}",
            ("config.code_executor.config.packages=[polars]",),
            ["polars", "openpyxl", "lxml"],
        ),
    ],
)
def test_items_are_added_to_those_that_a_config_or_another_override_names(
    tmp_path: Path, settings: str, single: Sequence[str], packages: list[str]
) -> None:
    (tmp_path / "alone.yaml").write_text(ALONE % settings)
    added = [
        ForEvery(CodeExecutor, "packages", [name], "--package", adds=True) for name in ("openpyxl", "lxml")
    ]
    [found] = all_of("packages", loaded(tmp_path / "alone.yaml", [*single, *added], MORE="scipy"))
    assert found == packages


def test_an_executor_without_packages_refuses_them(tmp_path: Path) -> None:
    executor = "autogen_ext.code_executors.docker.DockerCommandLineCodeExecutor"
    text = (ALONE % "{}").replace("codeact_team.ConfinedSessionCodeExecutor", executor)
    (tmp_path / "alone.yaml").write_text(text)
    error = refusal(
        tmp_path / "alone.yaml", ForEvery(CodeExecutor, "packages", ["lxml"], "--package", adds=True)
    )
    assert "--package: config.code_executor: " in str(error)
    assert "it has no setting 'packages'" in str(error)
