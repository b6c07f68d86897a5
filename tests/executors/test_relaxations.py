"""What a config grants beyond a workspace is told, whichever executor it is."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from codeact_team.executors.confined import ConfinedCommandLineCodeExecutor, ConfinedSessionCodeExecutor
from codeact_team.executors.docker import DockerCommandLineCodeExecutor, DockerSessionCodeExecutor

EXECUTORS = (
    ConfinedCommandLineCodeExecutor,
    ConfinedSessionCodeExecutor,
    DockerCommandLineCodeExecutor,
    DockerSessionCodeExecutor,
)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_directory_that_holds_more_than_a_workspace_is_told(
    executor: type[DockerSessionCodeExecutor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, here = tmp_path / "home", tmp_path / "projects" / "here"
    (home / "work").mkdir(parents=True)
    here.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(here)

    def told(work_dir: Path | str) -> str:
        return "; ".join(executor(work_dir=work_dir).relaxations)

    assert told("/") == "work_dir: / (holds what belongs to the system)"
    assert told("/etc/ssl") == "work_dir: /etc/ssl (holds what belongs to the system)"
    assert told(home) == f"work_dir: {home} (holds the home directory)"
    assert told("..") == "work_dir: .. (holds the current directory)"
    assert told("coding") == told(home / "work") == told(tmp_path / "elsewhere") == ""


def test_what_may_be_read_or_is_bound_besides_is_told() -> None:
    assert ConfinedSessionCodeExecutor(readable=["/"]).relaxations == ["readable: /"]
    volumes = {"/": {"bind": "/host", "mode": "rw"}}
    assert DockerSessionCodeExecutor(extra_volumes=volumes).relaxations == (f"extra_volumes: {volumes}",)
    (told,) = DockerSessionCodeExecutor(work_dir="coding", bind_dir="/").relaxations
    assert told == "bind_dir: / (holds what belongs to the system)"


LOOSER: dict[str, Any] = {
    "network": "bridge",
    "read_only": False,
    "stop_container": False,
    "memory_mib": 4096,
    "cpus": 2.5,
    "pids": 1000,
    "tmpfs_mib": 1000,
    "max_file_mib": 4096,
    "device_requests": [{"Driver": "nvidia", "Count": -1}],
    "user": "0",
}


@pytest.mark.parametrize("executor", [DockerCommandLineCodeExecutor, DockerSessionCodeExecutor])
def test_each_setting_that_grants_more_is_told(executor: type[DockerSessionCodeExecutor]) -> None:
    for name, value in LOOSER.items():
        (told,) = executor(**{name: value}).relaxations
        assert told.startswith(f"{name}: {value}")


async def test_it_is_told_where_no_team_is_opened_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    executor = ConfinedCommandLineCodeExecutor(confinement="best_effort", readable=[str(tmp_path)])
    with caplog.at_level(logging.WARNING):
        await executor.start()
    await executor.stop()
    assert f"the sandbox is looser than its default: readable: {tmp_path}" in caplog.messages
