"""What code has made or changed in a directory, found by looking twice."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codeact_team.core.executor_interface import Change, ChangedFile
from codeact_team.executors.workspace import files as snapshots
from codeact_team.executors.workspace.files import FileState, Snapshot, compare, take_snapshot

_FILES = st.dictionaries(
    st.sampled_from([f"{above}{name}" for above in ("", "d/", "d/e/") for name in "abcde"]),
    st.builds(FileState, st.integers(0, 2), st.integers(0, 2)),
)


def wait_for_another_time(directory: Path) -> None:
    """Files that are changed from now on have another time than those that are there: it has its ticks."""
    clock = directory / "clock"
    clock.touch()
    latest = clock.stat().st_ctime_ns
    while clock.stat().st_ctime_ns <= latest:
        clock.touch()
    clock.unlink()


@given(_FILES, _FILES)
def test_what_is_there_now_is_new_changed_or_as_it_was(
    before: dict[str, FileState], now: dict[str, FileState]
) -> None:
    changes = compare(Snapshot(before), Snapshot(now))
    told = {file.path: file for file in changes.files}
    assert list(told) == sorted(told)
    assert {path for path in told if told[path].change is Change.MADE} == {*now} - {*before}
    assert all(told[path].size == now[path].size for path in told)
    assert {path: seen for path, seen in now.items() if path not in told} == {
        path: seen for path, seen in now.items() if before.get(path) == seen
    }
    assert changes.remark == ""


def test_files_are_told_by_what_was_done_to_them(tmp_path: Path) -> None:
    for name in ("kept", "longer", "same size", "old time", "removed"):
        (tmp_path / name).write_text("1")
    before = take_snapshot(tmp_path)
    wait_for_another_time(tmp_path)
    (tmp_path / "longer").write_text("12")
    (tmp_path / "same size").write_text("2")
    status = (tmp_path / "old time").stat()
    (tmp_path / "old time").write_text("2")
    os.utime(tmp_path / "old time", ns=(status.st_atime_ns, status.st_mtime_ns))
    (tmp_path / "removed").unlink()
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "new").write_text("123")
    assert compare(before, take_snapshot(tmp_path)).files == [
        ChangedFile("deep/er/new", 3, Change.MADE),
        ChangedFile("longer", 2, Change.CHANGED),
        ChangedFile("old time", 1, Change.CHANGED),
        ChangedFile("same size", 1, Change.CHANGED),
    ]


def test_only_regular_files_are_told_and_no_link_is_followed(tmp_path: Path) -> None:
    outside, workspace = tmp_path / "outside", tmp_path / "workspace"
    outside.mkdir()
    (outside / "secret").write_text("1")
    workspace.mkdir()
    (workspace / "link").symlink_to(outside / "secret")
    (workspace / "directory").symlink_to(outside)
    os.mkfifo(workspace / "fifo")
    (workspace / "gone").mkdir(mode=0)
    odd = os.fsdecode(b"new\n\x1b[31mline\xff")
    (workspace / odd).touch()
    seen = take_snapshot(workspace)
    assert (list(seen.files), seen.others) == ([odd], 3)
    assert compare(Snapshot(), seen).remark.startswith("links and the like are not listed: 3")
    assert seen.unseen == (0 if os.geteuid() == 0 else 1)


def test_what_a_team_needs_for_itself_is_not_told(tmp_path: Path) -> None:
    for path in (
        ".codeact-team/output-1.txt",
        "__pycache__/m.pyc",
        "d/__pycache__/m.pyc",
        "d/.codeact-team/x",
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / f"tmp_code_{'0' * 64}.python").touch()
    (tmp_path / "tmp_code_mine.py").touch()
    assert sorted(take_snapshot(tmp_path).files) == ["d/.codeact-team/x", "tmp_code_mine.py"]


def test_a_deep_tree_is_left_at_some_depth(tmp_path: Path) -> None:
    before = take_snapshot(tmp_path)
    (tmp_path / "/".join("d" * 70)).mkdir(parents=True)
    assert compare(before, take_snapshot(tmp_path)).remark.endswith("were not checked: 1")


def test_more_files_than_can_be_looked_at_are_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "MAX_SEEN", 10)
    before = take_snapshot(tmp_path)
    for number in range(20):
        (tmp_path / str(number)).touch()
    many = take_snapshot(tmp_path)
    told = compare(before, many)
    assert len(told.files) == 10
    assert told.remark == "the workspace has more than 10 files, and not all were checked"
    # what was there cannot be told from what is new
    assert compare(many, take_snapshot(tmp_path)).files == ()
    assert "more than 10 files before" in compare(many, take_snapshot(tmp_path)).remark


def test_no_more_than_ten_thousand_are_told() -> None:
    changes = compare(Snapshot(), Snapshot({f"{number:05}": FileState(0, 0) for number in range(10_234)}))
    assert len(changes.files) == 10_000
    assert changes.remark == "234 more files were made or changed, and are not listed"
