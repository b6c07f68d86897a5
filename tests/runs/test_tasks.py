from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from codeact_team.config.document import read_document
from codeact_team.errors import ConfigError, SettingError
from codeact_team.runs.run import given_task

REPLAY: dict[str, Any] = {"provider": "autogen_ext.models.replay.ReplayChatCompletionClient", "config": {}}
LIVE: dict[str, Any] = {"provider": "autogen_ext.models.openai.OpenAIChatCompletionClient", "config": {}}


def task_of(source: str | Path, task: str | None) -> str:
    return given_task(read_document(source), task)


def config(folder: Path, client: object, **keys: object) -> Path:
    file = folder / "config.json"
    agent = {"provider": "some.Agent", "config": {"model_client": client}}
    file.write_text(json.dumps({"provider": "some.Team", "config": {"participants": [{}, agent]}, **keys}))
    return file


def test_what_the_user_gives_comes_first(tmp_path: Path):
    assert task_of("quickstart", " This. \n") == "This."
    assert task_of(config(tmp_path, LIVE), "This.") == "This."


def test_a_recorded_conversation_brings_its_task_along(tmp_path: Path):
    assert task_of("quickstart", None).startswith("Which of our items earned the most")
    assert task_of(config(tmp_path, REPLAY, description="Do it."), None) == "Do it."


@pytest.mark.parametrize("description", [None, "", " "])
def test_a_recorded_conversation_without_a_task_wants_one(tmp_path: Path, description: str | None):
    with pytest.raises(SettingError, match="there is no task"):
        task_of(config(tmp_path, REPLAY, description=description), None)


def test_the_description_of_a_dumped_team_is_no_task(tmp_path: Path):
    with pytest.raises(SettingError, match="there is no task: give it as the second argument"):
        task_of(config(tmp_path, LIVE, description="A group chat that ..."), None)


@pytest.mark.parametrize("task", ["", " \n"])
def test_an_empty_task_is_none(task: str):
    with pytest.raises(SettingError, match="there is no task"):
        task_of("quickstart", task)


def test_a_config_that_is_not_there_is_told_before_the_task_is_missed():
    with pytest.raises(ConfigError, match="no shipped config 'quickstar'; did you mean 'quickstart'"):
        task_of("quickstar", None)
