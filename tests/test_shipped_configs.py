"""The configs that ship: valid, faithful, and the quickstart runs to its accepted answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from autogen_agentchat.base import TaskResult
from autogen_agentchat.messages import CodeExecutionEvent, CodeGenerationEvent, TextMessage
from autogen_core.models import ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from codeact_team.agents.codeact.agent import CodeActAgent
from codeact_team.agents.observations import Ending, ExecutionRecord
from codeact_team.agents.teams import round_robin_team
from codeact_team.config.dumping import dump_config
from codeact_team.config.loading import load_config, validate_config
from codeact_team.config.schema import config_schema
from codeact_team.executors.confined import ConfinedCommandLineCodeExecutor
from codeact_team.executors.docker import DockerCommandLineCodeExecutor, DockerSessionCodeExecutor
from codeact_team.models.verdicts import Verdict
from codeact_team.runs.opening import open_team

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


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_dump_and_load_is_the_identity(path: Path, tmp_path: Path) -> None:
    dumped = dump_config(load_config(path))
    again = tmp_path / "again.yaml"
    again.write_text(dumped)
    assert dump_config(load_config(again)) == dumped
    assert "key-of-a-test" not in dumped


def test_the_team_config_is_the_team_made_in_python() -> None:
    team = round_robin_team(
        OpenAIChatCompletionClient(model="gpt-4.1"),
        DockerCommandLineCodeExecutor(work_dir="coding", delete_tmp_files=True, packages=PACKAGES),
    )
    assert without_budget(load_yaml(dump_config(load_config("team")))) == load_yaml(dump_config(team))


def test_the_team_without_docker_is_the_same_team_but_for_the_sandbox() -> None:
    team = round_robin_team(
        OpenAIChatCompletionClient(model="gpt-4.1"),
        ConfinedCommandLineCodeExecutor(work_dir="coding", delete_tmp_files=True, packages=PACKAGES),
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


def test_executors_and_a_whole_team_survive_dump_and_load_with_every_field_set(tmp_path: Path) -> None:
    client = OpenAIChatCompletionClient(
        model="m",
        model_info=ModelInfo(
            vision=False, function_calling=False, json_output=False, structured_output=False, family="unknown"
        ),
    )
    executor = ConfinedCommandLineCodeExecutor(
        timeout=7,
        work_dir=tmp_path / "work",
        confinement="best_effort",
        memory_mib=256,
        pids=20,
        readable=["/opt"],
        environment={"A": "b"},
        delete_tmp_files=True,
        languages={"perl": "perl -w"},
    )
    team = round_robin_team(client, executor, max_retries_on_error=1, max_messages=9, max_tokens=1000)
    dumped = dump_config(team)
    path = tmp_path / "team.yaml"
    path.write_text(dumped)
    assert dump_config(load_config(path)) == dumped


async def test_the_quickstart_fails_first_is_repaired_and_accepted() -> None:
    decisions: list[str] = []
    exit_codes: list[int] = []
    result = TaskResult(messages=[])
    async with open_team("quickstart") as team:
        async for item in team.run_stream(task="the recorded one"):
            if isinstance(item, CodeExecutionEvent):
                exit_codes.append(item.result.exit_code)
            elif isinstance(item, CodeGenerationEvent) and not item.code_blocks:
                decisions.append(item.content)
            elif isinstance(item, TaskResult):
                result = item
    assert exit_codes == [1, 0]
    assert len(decisions) == 1
    assert "float() fails on 'n/a'" in decisions[0]
    ran, judged = (message for message in result.messages[-2:] if isinstance(message, TextMessage))
    record, verdict = ExecutionRecord.from_metadata(ran.metadata), Verdict.from_metadata(judged.metadata)
    assert record is not None
    assert record.output.splitlines() == [
        "read 6 days, no value for Wed",
        "mean: 21.42",
        "warmest: Sat (24.5)",
    ]
    assert verdict is not None
    assert verdict.accepted
    assert result.stop_reason == "reflection accepted the work"


async def test_the_agent_s_quickstart_keeps_its_variables_through_an_error_and_answers_from_code() -> None:
    exit_codes: list[int] = []
    result = TaskResult(messages=[])
    async with open_team("quickstart-codeact") as agent:
        async for item in agent.run_stream(task="the recorded one"):
            if isinstance(item, CodeExecutionEvent):
                exit_codes.append(item.result.exit_code)
            elif isinstance(item, TaskResult):
                result = item
    assert exit_codes == [0, 1, 0, 0]
    answer = result.messages[-1]
    assert isinstance(answer, TextMessage)
    assert answer.content == (
        "The tarts brought in the most: 201.50 of 462.85. The best day was Fri with 166.90; "
        "on Wednesday the bakery was closed."
    )
    assert Ending.from_metadata(answer.metadata) is Ending.ANSWERED


def test_the_agent_s_config_is_the_agent_made_in_python() -> None:
    agent = CodeActAgent(
        "coder",
        OpenAIChatCompletionClient(model="gpt-4.1"),
        DockerSessionCodeExecutor(work_dir="coding", image="python:3-slim", timeout=60, packages=PACKAGES),
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
