"""The settings of executors, as Python code gives them."""

from __future__ import annotations

import inspect
import os
from pathlib import Path
from typing import Any

import pytest
from docker.types import DeviceRequest

from codeact_team.errors import SettingError
from codeact_team.executors.confined import ConfinedCommandLineCodeExecutor, ConfinedSessionCodeExecutor
from codeact_team.executors.docker import DockerCommandLineCodeExecutor, DockerSessionCodeExecutor

KINDS = [
    ConfinedCommandLineCodeExecutor,
    ConfinedSessionCodeExecutor,
    DockerCommandLineCodeExecutor,
    DockerSessionCodeExecutor,
]


def config_of(executor: Any) -> dict[str, Any]:
    return executor.dump_component().config


@pytest.mark.parametrize("kind", KINDS)
def test_a_signature_shows_each_setting_with_its_default(kind: Any) -> None:
    parameters = inspect.signature(kind).parameters
    assert parameters.keys() - {"functions"} == kind.component_config_schema.model_fields.keys()
    shown = {name: parameter.default for name, parameter in parameters.items() if name != "functions"}
    assert {name: value for name, value in shown.items() if value is not None} == config_of(kind())
    assert parameters["work_dir"].annotation == str | os.PathLike[str] | None


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_setting_is_refused_as_python_does(kind: Any) -> None:
    with pytest.raises(TypeError, match="'time_out'"):
        kind(time_out=5)
    with pytest.raises(SettingError, match="timeout"):
        kind(timeout=None)


def test_autogens_positions_and_empty_values_are_taken(tmp_path: Path) -> None:
    given: dict[str, Any] = {"device_requests": None, "extra_hosts": None, "extra_volumes": None}
    executor = DockerCommandLineCodeExecutor("other:1", "name", work_dir=tmp_path, **given)
    config = config_of(executor)
    assert (config["image"], config["container_name"], config["work_dir"]) == (
        "other:1",
        "name",
        str(tmp_path),
    )
    assert (config["device_requests"], config["extra_hosts"], config["extra_volumes"]) == ([], {}, {})
    (device,) = config_of(DockerSessionCodeExecutor(device_requests=[DeviceRequest(count=-1)]))[
        "device_requests"
    ]
    assert device["Count"] == -1
