"""The configs that ship: valid, faithful, and the quickstart runs to its accepted answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from autogen_ext.models.openai import OpenAIChatCompletionClient
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML
from support.variations import mostly_long

from codeact_team.agents.codeact.agent import CodeActAgent
from codeact_team.agents.teams import round_robin_team
from codeact_team.config.dumping import dump_config
from codeact_team.config.loading import load_config, validate_config
from codeact_team.config.schema import config_schema
from codeact_team.executors.confined import ConfinedCommandLineCodeExecutor
from codeact_team.executors.docker import DockerCommandLineCodeExecutor, DockerSessionCodeExecutor

CONFIGS = sorted((Path(__file__).parents[1] / "configs").glob("*.yaml"))
PACKAGES = ["pandas", "matplotlib"]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-a-test")
    monkeypatch.setenv("LOCAL_MODEL", "model-of-a-test")


def load_text(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)  # pyright: ignore[reportUnknownMemberType]


def plain(path: Path) -> Any:
    return load_text(path.read_text())


@pytest.fixture(scope="module")
def validator() -> Any:
    return Draft202012Validator(config_schema())


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_is_valid_and_fits_the_schema(path: Path, validator: Any) -> None:
    validate_config(path)
    validator.validate(plain(path))


@pytest.mark.parametrize("path", mostly_long(CONFIGS, usual=4), ids=lambda path: path.stem)
def test_dump_and_load_is_the_identity(path: Path, tmp_path: Path) -> None:
    dumped = dump_config(load_config(path))
    again = tmp_path / "again.yaml"
    again.write_text(dumped)
    assert dump_config(load_config(again)) == dumped
    assert "key-of-a-test" not in dumped


def test_the_team_config_is_the_team_made_in_python() -> None:
    team = round_robin_team(
        OpenAIChatCompletionClient(model="gpt-4.1"),
        DockerCommandLineCodeExecutor(delete_tmp_files=True, packages=PACKAGES),
    )
    assert without_budget(load_yaml(dump_config(load_config("team")))) == load_yaml(dump_config(team))


def test_the_team_without_docker_is_the_same_team_but_for_the_sandbox() -> None:
    team = round_robin_team(
        OpenAIChatCompletionClient(model="gpt-4.1"),
        ConfinedCommandLineCodeExecutor(delete_tmp_files=True, packages=PACKAGES),
    )
    from_yaml = load_yaml(dump_config(load_config("team-confined")))
    assert without_budget(from_yaml) == load_yaml(dump_config(team))


def test_the_team_with_a_local_model_is_the_same_team() -> None:
    local, team = (load_yaml(dump_config(load_config(name))) for name in ("local-model", "team"))
    assert local == team


def load_yaml(text: str) -> Any:
    document = load_text(text)
    for participant in document["config"]["participants"]:
        # a reference to the environment, and its default
        participant["config"].pop("model_client")
    return document


def without_budget(document: Any) -> Any:
    """A team without what counts what goes through a dispatcher, which there need not be for one made in Python."""
    budget = document["config"]["termination_condition"]["config"]["conditions"].pop()
    assert budget["provider"] == "codeact_team.BudgetTermination"
    return document


def test_the_agent_s_config_is_the_agent_made_in_python() -> None:
    agent = CodeActAgent(
        "coder",
        OpenAIChatCompletionClient(model="gpt-4.1"),
        DockerSessionCodeExecutor(image="python:3-slim", timeout=60, packages=PACKAGES),
        model_client_stream=True,
        stream_output=True,
        max_seconds=900,
        max_tokens=200_000,
    )
    documents = [load_text(dump_config(part)) for part in (agent, load_config("codeact"))]
    for document in documents:
        # a reference to the environment, and its default
        document["config"].pop("model_client")
    assert documents[0] == documents[1]
