"""Links that earlier code has left in a workspace, on the paths that a person names: no command reads or writes through them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.command_line import codeact_team, in_this_process, talker

TASK = '{"id": "a", "text": "A task"}\n'


@pytest.fixture(autouse=True)
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A victim's directory, and a workspace from where code has made links to it."""
    (tmp_path / "victim" / "runs").mkdir(parents=True)
    (tmp_path / "victim" / "precious").write_text("sk-precious\n")
    for link, target in {
        "file": "../victim/precious",
        "file.md": "../victim/precious",
        "file.csv": "../victim/precious",
        "new.yaml": "../victim/new.yaml",
        "folder": "../victim",
        "out/runs": "../../victim/runs",
        "files/files": "../../victim/runs",
        "leased/leases": "../../victim/runs",
        "logged/batch.jsonl": "../../victim/batch.jsonl",
    }.items():
        path = tmp_path / "ws" / link
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
    (tmp_path / "tasks.jsonl").write_text(TASK)
    talker(tmp_path, ["An answer."])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def victim(folder: Path) -> dict[str, str]:
    top = folder / "victim"
    return {os.path.relpath(path, top): path.read_text() if path.is_file() else "" for path in top.rglob("*")}


@pytest.mark.parametrize(
    "command",
    [
        pytest.param("schema -o ws/file", marks=pytest.mark.long),
        "schema -o ws/file.md",
        "init ws/file --force",
        "init ws/new.yaml",
        "init ws/folder/new.yaml",
        "run talker.json x --run-dir ws/folder/runs",
        pytest.param("run talker.json x --run-dir ws/folder/more/runs", marks=pytest.mark.long),
        "runs --run-dir ws/folder/runs",
        "batch talker.json tasks.jsonl --out ws/folder",
        pytest.param("batch talker.json tasks.jsonl --out ws/folder/more", marks=pytest.mark.long),
        "batch talker.json tasks.jsonl --out ws/out",
        "batch talker.json tasks.jsonl --out ws/files",
        "batch talker.json tasks.jsonl --out ws/leased",
        "batch talker.json tasks.jsonl --out ws/logged",
    ],
)
def test_nothing_is_written_through_a_link(planted: Path, command: str) -> None:
    before = victim(planted)
    result = in_this_process(*command.split())
    assert result.returncode == 2
    assert "is a link" in result.stderr
    assert "name its target" in result.stderr.replace("\n", " ")
    assert victim(planted) == before


@pytest.mark.long
def test_an_export_makes_no_directory_behind_a_link(planted: Path) -> None:
    in_this_process("run", "talker.json", "x")
    before = victim(planted)
    result = codeact_team("export", "last", "ws/folder/deep/er/log.eval", cwd=planted)
    assert result.returncode == 2
    assert "ws/folder is a link to ../victim, which code may have planted" in result.stderr
    assert victim(planted) == before


def test_no_run_is_removed_through_a_link(planted: Path) -> None:
    in_this_process("run", "talker.json", "x", "--run-dir", "victim/runs")
    (name,) = (path.name for path in (planted / "victim" / "runs").iterdir() if path.is_dir())
    (planted / "ws" / "more").mkdir()
    (planted / "ws" / "more" / "linked").symlink_to(f"../../victim/runs/{name}")
    before = victim(planted)
    for runs in ("ws/out/runs", "ws/more"):
        in_this_process("runs", "--prune", "--older-than", "0", "--run-dir", runs)
    assert victim(planted) == before


def test_what_was_to_become_the_results_of_a_batch_leads_nowhere_else(planted: Path) -> None:
    (planted / "ws" / "plain").mkdir()
    (planted / "ws" / "plain" / "results.jsonl.new").symlink_to("../../victim/precious")
    result = codeact_team(*"batch talker.json tasks.jsonl --out ws/plain --workers 1".split(), cwd=planted)
    assert result.returncode == 0, result.stderr
    assert json.loads((planted / "ws" / "plain" / "results.jsonl").read_text())["answer"] == "An answer."
    assert victim(planted)["precious"] == "sk-precious\n"


def test_a_config_is_written_over_another_only_if_that_is_asked_for(planted: Path) -> None:
    (planted / "team.yaml").write_text("mine")
    refused = in_this_process("init", "team.yaml")
    assert refused.returncode == 2
    assert "team.yaml exists already; --force overwrites it" in refused.stderr
    assert (planted / "team.yaml").read_text() == "mine"
    assert in_this_process("init", "team.yaml", "--force").returncode == 0
    assert "provider" in (planted / "team.yaml").read_text()


@pytest.mark.parametrize(
    "command",
    [
        "run talker.json -f ws/file",
        "run talker.json -f ws/folder/precious",
        "run ws/file x",
        "validate ws/folder/precious",
        "batch talker.json ws/file --out out",
        pytest.param("batch talker.json ws/file.csv --out out", marks=pytest.mark.long),
        "batch talker.json tasks.jsonl --checker ws/file --out out",
    ],
)
def test_nothing_is_read_through_a_link(planted: Path, command: str) -> None:
    result = in_this_process(*command.split())
    assert result.returncode == 2
    told = " ".join((result.stdout + result.stderr).split())
    assert "which code may have planted: name its target" in told
    assert "sk-precious" not in told
    assert not (planted / ".codeact-team").exists()


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("run talker.json -f huge", "the task cannot be read from huge: it has more than 1,048,576 bytes"),
        ("run huge x", "huge: larger than a config may be (1048576 bytes)"),
        ("batch talker.json huge --out out", "line 1 is longer than a task may be (64 MiB)"),
        pytest.param(
            "batch talker.json huge.csv --out out",
            "line 1 is longer than a task may be (64 MiB)",
            marks=pytest.mark.long,
        ),
        (
            "batch talker.json tasks.jsonl --checker huge --out out",
            "the checker cannot be read from huge: it has more than 1,048,576 bytes",
        ),
        ("run talker.json -f pipe", "the task cannot be read from pipe: it is not a regular file"),
        ("batch talker.json pipe --out out", "the tasks cannot be read from pipe: it is not a regular file"),
    ],
)
def test_what_is_too_large_or_no_file_is_refused_with_a_sentence(
    planted: Path, command: str, told: str
) -> None:
    for name in ("huge", "huge.csv"):
        (planted / name).touch()
        os.truncate(planted / name, 20 << 30)
    os.mkfifo(planted / "pipe")
    result = in_this_process(*command.split())
    assert result.returncode == 2
    assert told in " ".join(result.stderr.split())


def test_more_than_a_text_on_standard_input_is_refused(planted: Path) -> None:
    text = "x" * (3 << 20)
    task = codeact_team("run", "talker.json", "-", cwd=planted, stdin=text)
    assert task.returncode == 2
    assert "the task from standard input has more than 1,048,576 bytes" in task.stderr
    message = codeact_team("chat", "talker.json", cwd=planted, stdin=text)
    assert message.returncode == 2
    assert "a message from standard input has more than 1,048,576 bytes" in message.stderr


def test_a_task_may_come_from_what_the_shell_has_opened(planted: Path) -> None:
    result = codeact_team("run", "talker.json", "-f", "/dev/stdin", cwd=planted, stdin="Say something.")
    assert "── user\nSay something.\n" in result.stdout
