"""``codeact-team clean``: what is kept is shown, and removed if that is wanted, except what is in use."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from support.command_line import in_this_process, lines
from support.recorded import recorder, result

from codeact_team.executors.packages.layers import Layer, Layers
from codeact_team.files.opening import lock
from codeact_team.journal.seal import key_file

DAY = 24 * 60 * 60


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere")
    for name, folder in (("XDG_CACHE_HOME", "cache"), ("XDG_STATE_HOME", "state")):
        monkeypatch.setenv(name, str(tmp_path / folder))


def layer(name: str, days: float) -> Layer:
    """Packages as they are kept, which were used so many days ago."""
    kept = Layers().root / "layers"
    (kept / name).mkdir(parents=True)
    (kept / name / "module.py").write_text("#" * 1000)
    made = Layer(path=kept / name, packages={name: "1.0"}, interpreter="CPython", size=1000, stamp="")
    (kept / f"{name}.json").write_text(made.model_dump_json())
    when = time.time() - days * DAY
    os.utime(kept / name, (when, when))
    return made


def removed(*arguments: str) -> dict[str, bool]:
    """By kind, whether it was removed."""
    told = in_this_process("clean", "--json", *arguments)
    assert told.returncode == 0, told.stderr
    return {line["kind"]: line["removed"] for line in lines(told.stdout)}


def test_all_that_is_kept_is_removed_if_that_is_wanted_and_nothing_else(tmp_path: Path):
    recorder(tmp_path / ".codeact-team" / "runs", "1", result()).close()
    layer("pandas", 1)
    sourced = f"source '{tmp_path}/.bash_completions/codeact-team.sh'"
    (tmp_path / ".bashrc").write_text(f"a=1\n{sourced}\nb=2\n")
    (tmp_path / ".bash_completions").mkdir()
    (tmp_path / ".bash_completions" / "codeact-team.sh").write_text("complete\n")
    shown = in_this_process("clean")
    assert shown.returncode == 0
    for text in (
        "packages    1 set, 1.0 kB",
        "runs        1 run with workspaces, ",
        "key  ",
        "completion  ",
    ):
        assert text in shown.stdout
    assert "to remove it: codeact-team clean --yes" in shown.stderr
    kinds = ["packages", "runs", "key", "completion"]
    assert removed() == removed("--yes", "--dry-run") == dict.fromkeys(kinds, False)
    assert removed("runs", "--yes") == {"runs": True}
    assert removed("--yes") == {"packages": True, "key": True, "completion": True}
    assert [path.name for path in tmp_path.rglob("*") if not path.is_dir()] == [".bashrc"]
    assert (tmp_path / ".bashrc").read_text() == "a=1\nb=2\n"
    assert removed("--yes") == {}


def test_what_is_in_use_stays(tmp_path: Path):
    running = recorder(tmp_path / "runs", "at-work", result())
    used = layer("pandas", 1)
    layer("polars", 1)
    with used.held():
        told = in_this_process("clean", "--yes", "--run-dir", "runs")
    assert told.returncode == 0
    assert "runs        kept: still running: at-work\n" in told.stdout
    assert "key         kept: a run is at work\n" in told.stdout
    assert "packages    kept: sandboxes use 1 of them" in told.stdout
    running.close()
    assert key_file().exists()
    assert [kept.path.name for kept in Layers().all()] == ["pandas"]
    assert removed("--yes", "--run-dir", "runs") == {"packages": True, "runs": True, "key": True}


def test_a_work_dir_in_which_a_run_works_keeps_the_key(tmp_path: Path):
    recorder(tmp_path / "runs", "1", result()).close()
    (claims := key_file().parent / "work_dirs").mkdir()
    descriptor = os.open(claims / "one", os.O_RDWR | os.O_CREAT)
    assert lock(descriptor)
    assert removed("key", "--yes") == {"key": False}
    os.close(descriptor)
    assert removed("key", "--yes") == {"key": True}


def test_packages_that_were_not_used_for_long_are_listed_and_pruned():
    for name, days in (("old", 40), ("new", 1)):
        layer(name, days)
    listed = in_this_process("packages", "--older-than", "30", "--json")
    assert [list(line["packages"]) for line in lines(listed.stdout)] == [["old"]]
    assert in_this_process("packages", "--older-than", "30", "--prune").returncode == 0
    assert [kept.path.name for kept in Layers().all()] == ["new"]
    with Layers().all()[0].held():
        assert lines(in_this_process("packages", "--older-than", "0.5", "--json").stdout) == []
