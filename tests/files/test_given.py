"""What may be given to a sandbox."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from codeact_team.errors import SettingError
from codeact_team.executors.workspace.given import GivenData

_MIB = 1 << 20


def given(*paths: object, mib: int | None = None, files: int | None = None) -> GivenData:
    return GivenData([str(path) for path in paths], mib=mib, files=files)


def test_a_folder_is_given_as_a_folder_with_its_inner_links(tmp_path: Path) -> None:
    folder = tmp_path / "in" / "folder"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.csv").write_text("1\n")
    (folder / "again.csv").symlink_to("deep/a.csv")
    found = given(f"{folder}/").find()
    assert [(one.path, one.target) for one in found] == [
        ("folder", ""),
        ("folder/again.csv", "deep/a.csv"),
        ("folder/deep", ""),
        ("folder/deep/a.csv", ""),
    ]


def test_the_current_directory_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert given(".").find()[0].path == "here"
    assert given("..").find()[0].path == tmp_path.name


@pytest.mark.parametrize("target", ["/etc/passwd", "../../other", "nowhere", "../folder/../../other"])
def test_links_that_lead_out_of_a_folder_are_refused(tmp_path: Path, target: str) -> None:
    folder = tmp_path / "in" / "folder"
    folder.mkdir(parents=True)
    (tmp_path / "other").write_text("secret")
    (folder / "link").symlink_to(target)
    with pytest.raises(SettingError, match=f"link .*folder/link leads to {target}, which is not copied"):
        given(folder).find()


def test_what_cannot_be_given_is_told_by_name(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    for place in (tmp_path, tmp_path / "one"):
        (place / "sales.csv").write_text("1\n")
    os.mkfifo(tmp_path / "one" / "fifo")
    for paths, said in {
        (tmp_path / "salse.csv",): rf"there is no {tmp_path}/salse\.csv \(looked for in {os.getcwd()}\)",
        (tmp_path / "one",): "one/fifo is neither a file nor a directory",
        ("/dev/null",): "/dev/null is neither a file nor a directory",
        ("/",): "no name",
        (tmp_path / "sales.csv" / "x",): "cannot be read: Not a directory",
        (tmp_path / "sales.csv", tmp_path / "one" / "sales.csv"): "would both be sales.csv in the workspace",
    }.items():
        with pytest.raises(SettingError, match=f"data: .*{said}"):
            given(*paths).find()


def test_more_than_the_workspace_may_take_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(3 * _MIB)
    assert given(tmp_path / "large", mib=3).find()
    with pytest.raises(
        SettingError, match=r"does not fit: workspace_mib is 2, and the data up to this file has 3\.0 MiB"
    ):
        given(tmp_path / "large", mib=2).find()
    for number in range(5):
        (tmp_path / f"{number}").touch()
    with pytest.raises(SettingError, match="workspace_files is 5"):
        given(tmp_path, files=5).find()


@pytest.mark.parametrize("path", ["work/report.csv", "work/deep", "work/deep/file.csv", "work/deep/"])
def test_links_that_code_may_have_planted_are_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "file.csv").write_text("secret")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "report.csv").symlink_to("/etc/shadow")
    (tmp_path / "work" / "deep").symlink_to(secret)
    monkeypatch.chdir(tmp_path)
    for named in (path, tmp_path / path):
        with pytest.raises(SettingError, match=r"is a link to .*: name its target"):
            given(named).find()


def test_a_link_that_is_planted_after_the_look_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "work" / "deep").mkdir(parents=True)
    (tmp_path / "work" / "deep" / "shadow").write_text("1")
    found = given(tmp_path / "work").find()
    (tmp_path / "work" / "deep").rename(tmp_path / "work" / "moved")
    (tmp_path / "work" / "deep").symlink_to("/etc")
    with pytest.raises(OSError, match="planted"):
        found[-1].open()


def test_the_directory_of_a_run_is_not_given_whatever_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    for run in (folder / ".codeact-team" / "runs" / "one", folder / "kept"):
        (run / "blobs").mkdir(parents=True)
        for name in ("run.json", "journal.jsonl", "config.yaml"):
            (run / name).write_text("{}")
    (folder / "journal.jsonl").write_text("of somebody else")
    assert [one.path for one in given(folder).find() if one.is_file] == ["project/journal.jsonl"]
    with pytest.raises(SettingError, match="is the directory of a run"):
        given(folder / "kept").find()


JOURNAL = '{"n":1,"at":1795527792.5,"event":{"type":"run_began"},"crc":"00000000"}\n'
ABOUT = '{\n  "format": 1,\n  "id": "one",\n  "task": "Look."\n}\n'


@pytest.mark.parametrize(
    "parts", [{"run.json": ABOUT}, {"journal.jsonl": JOURNAL}, {"run.json": "{", "journal.jsonl": ""}]
)
def test_no_part_of_a_run_is_given_whatever_else_of_it_is_left(tmp_path: Path, parts: dict[str, str]) -> None:
    run = tmp_path / "project" / "kept"
    (run / "blobs" / "ab").mkdir(parents=True)
    for name, text in {**parts, "config.yaml": "provider: x", "blobs/ab/cd": "secret"}.items():
        (run / name).write_text(text)
    for part in (*parts, "config.yaml", "blobs", "blobs/ab", "blobs/ab/cd", "blobs/"):
        with pytest.raises(SettingError, match=r"is in /.*/project/kept, the directory of a run"):
            given(f"{run}/{part}").find()
    for same in ("", "/", "/blobs/.."):
        with pytest.raises(SettingError, match=r"the directory of a run"):
            given(f"{run}{same}").find()
    (tmp_path / "project" / "run.json").write_text('{"mine": 1}')
    assert [one.path for one in given(tmp_path / "project").find() if one.is_file] == ["project/run.json"]


def test_hidden_files_are_left_out_and_said_unless_they_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    folder = tmp_path / "project"
    (folder / ".git").mkdir(parents=True)
    for name in (".env", ".git/config", "sales.csv", *(f".{number}" for number in range(5))):
        (folder / name).write_text("x")
    (folder / "keys").symlink_to(".env")
    data = given(folder, folder / ".env", folder / ".git")
    for _ in range(2):
        assert [one.path for one in data.find()] == [
            "project",
            "project/sales.csv",
            ".env",
            ".git",
            ".git/config",
        ]
    [note] = [record.getMessage() for record in caplog.records]
    named = ", ".join(f"{folder}/.{number}" for number in range(5))
    assert note == f"data: hidden files and directories are left out, unless you name them (8): {named}, …"
