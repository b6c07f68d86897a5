from __future__ import annotations

import json
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
from command_line import codeact_team, in_this_process, lines

from codeact_team.sandboxes.docker.container import LABEL, owner_label
from codeact_team.sandboxes.docker.engine import connect, engine_url

SECRET = "a-key-that-must-not-be-told"


def test_doctor_tells_what_is_missing_and_what_to_do(tmp_path: Path):
    result = codeact_team("doctor", cwd=tmp_path, DOCKER_HOST="unix:///nowhere")
    assert result.returncode == 0, result.stdout
    assert "✓ python " in result.stdout
    assert "✗ engine      no container engine answers at unix:///nowhere: start Docker" in result.stdout
    assert "✗ key         OPENAI_API_KEY is not set" in result.stdout
    assert (
        "✓ configs     codeact, executor, local-model, quickstart-codeact, quickstart, team, tools\n"
        in result.stdout
    )
    assert result.stderr == ""


@pytest.mark.docker
def test_doctor_tells_programs_the_same_and_no_key(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    result = in_this_process("doctor", "--json")
    assert result.returncode == 0
    states = {check["name"]: check["state"] for check in lines(result.stdout)}
    assert list(states) == [
        "python",
        "confinement",
        "engine",
        "limits",
        "image",
        "containers",
        "key",
        "configs",
    ]
    assert (states["engine"], states["image"], states["key"]) == ("works", "works", "works")
    assert SECRET not in result.stdout + result.stderr


@pytest.mark.docker
def test_doctor_removes_what_a_killed_run_has_left():
    ended = subprocess.Popen(["true"])
    ended.wait()
    owner = f"{owner_label().rpartition(':')[0]}:{ended.pid}"
    with closing(connect(engine_url())) as client:
        left: str = client.create_container("python:3-slim", ["true"], labels={LABEL: owner})["Id"]
        name: str = client.inspect_container(left)["Name"].lstrip("/")
        assert name in in_this_process("doctor").stdout
        result = in_this_process("doctor", "--clean", "--json")
        assert not client.containers(all=True, filters={"id": left})
    assert result.returncode == 0
    assert f"removed {name} (" in result.stderr
    checks = {check["name"]: check["detail"] for check in map(json.loads, result.stdout.splitlines())}
    assert name not in checks["containers"]


def test_without_an_engine_there_is_nothing_to_clean(tmp_path: Path):
    result = codeact_team("doctor", "--clean", cwd=tmp_path, DOCKER_HOST="unix:///nowhere")
    assert result.returncode == 2
    assert result.stderr.startswith("error: no container engine answers at unix:///nowhere")
    assert result.stdout == ""
