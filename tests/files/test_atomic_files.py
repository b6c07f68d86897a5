"""Writing into a directory that others write to: nothing is followed, nothing that is not ours is overwritten."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from codeact_team.files import atomic as atomic_files
from codeact_team.files.atomic import Directory, Taken
from codeact_team.files.opening import below, opened, opened_file


def put(directory: Path, name: str, data: bytes = b"new") -> str:
    with opened(directory) as top, Directory(top).new_file(name) as new:
        new.write(data)
        return new.settle_beside()


def test_a_file_is_there_when_it_is_whole(tmp_path: Path) -> None:
    with opened(tmp_path) as top, pytest.raises(RuntimeError):  # noqa: PT012 - what is left is the question
        with Directory(top).new_file("a") as new:
            new.write(b"half")
            raise RuntimeError
    assert os.listdir(tmp_path) == []
    assert put(tmp_path, "a") == "a"
    assert (tmp_path / "a").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a"]


def test_a_file_that_is_not_whole_has_no_name(tmp_path: Path) -> None:
    with opened(tmp_path) as top, Directory(top).new_file("a") as new:
        new.write(b"half")
        assert os.listdir(tmp_path) == []
        new.replace()
        assert os.listdir(tmp_path) == ["a"]


@pytest.fixture
def without_unnamed_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the machine says where a file system has no files without a name."""
    monkeypatch.setattr(atomic_files, "_UNNAMED", os.O_RDWR | os.O_DIRECTORY)


@pytest.mark.usefixtures("without_unnamed_files")
def test_what_a_killed_process_has_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    left, theirs = tmp_path / ".put-0123456789abcdef", tmp_path / ".put-it-here"
    left.write_bytes(b"half")
    theirs.write_bytes(b"theirs")
    with opened(tmp_path) as top, Directory(top).new_file("a") as new:
        new.write(b"half")
        assert not left.exists()
        [passing] = {*os.listdir(tmp_path)} - {theirs.name}
        # another process, at the same time
        assert put(tmp_path, "b") == "b"
        assert {*os.listdir(tmp_path)} == {passing, "b", theirs.name}
        new.settle()
    assert {*os.listdir(tmp_path)} == {"a", "b", theirs.name}


@pytest.mark.usefixtures("without_unnamed_files")
def test_where_files_need_a_name_from_the_beginning_they_are_put_all_the_same(tmp_path: Path) -> None:
    test_a_file_is_there_when_it_is_whole(tmp_path)
    (tmp_path / "a").unlink()
    test_what_was_put_there_is_replaced_until_somebody_changes_it(tmp_path)


def test_what_was_put_there_is_replaced_until_somebody_changes_it(tmp_path: Path) -> None:
    assert put(tmp_path, "chart.png", b"1") == "chart.png"
    assert put(tmp_path, "chart.png", b"22") == "chart.png"
    assert (tmp_path / "chart.png").read_bytes() == b"22"
    (tmp_path / "chart.png").write_bytes(b"mine")
    assert put(tmp_path, "chart.png", b"333") == "chart-2.png"
    assert put(tmp_path, "chart.png", b"4444") == "chart-2.png"
    assert (tmp_path / "chart.png").read_bytes() == b"mine"


def test_what_is_equal_stays(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(b"new")
    before = (tmp_path / "a.tar.gz").stat()
    assert put(tmp_path, "a.tar.gz") == "a.tar.gz"
    after = (tmp_path / "a.tar.gz").stat()
    # to read it changes the time of its last access
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)
    assert put(tmp_path, "a.tar.gz", b"other") == "a.tar-2.gz"


def test_nothing_is_overwritten_where_there_are_no_attributes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "setxattr")
    assert [put(tmp_path, "a", data) for data in (b"1", b"2", b"2")] == ["a", "a-2", "a-2"]


def test_no_link_is_followed(tmp_path: Path) -> None:
    victim, directory = tmp_path / "victim", tmp_path / "directory"
    victim.mkdir()
    (victim / "file").write_text("theirs")
    directory.mkdir()
    (directory / "link").symlink_to(victim)
    (directory / "file").symlink_to(victim / "file")
    assert put(directory, "file") == "file-2"
    with opened(directory) as top:
        target = Directory(top)
        with pytest.raises(OSError), target.new_file("link/file"):  # noqa: PT011 - ENOTDIR or ELOOP, as the kernel has it
            pass
        with pytest.raises(OSError):  # noqa: PT011
            target.make("link/inner")
        for path in ("../victim", "/etc", "a//b", "."):
            with pytest.raises(OSError, match="not a path below"), below(top, path):
                pass
            with pytest.raises(OSError, match="not a path below"):
                target.make(path)
    assert os.listdir(victim) == ["file"]
    assert (victim / "file").read_text() == "theirs"


@pytest.mark.parametrize("kind", ["directory", "fifo", "socket"])
def test_what_is_no_file_is_neither_read_nor_replaced(tmp_path: Path, kind: str) -> None:
    if kind == "directory":
        (tmp_path / "x").mkdir()
    else:
        os.mknod(tmp_path / "x", 0o600 | (stat.S_IFIFO if kind == "fifo" else stat.S_IFSOCK))
    before = (tmp_path / "x").lstat()
    assert put(tmp_path, "x") == "x-2"
    assert (tmp_path / "x").lstat().st_ino == before.st_ino
    with opened(tmp_path) as top, pytest.raises(OSError), opened_file(top, "x"):  # noqa: PT011
        pass


def test_links_are_made_once(tmp_path: Path) -> None:
    with opened(tmp_path) as top:
        target = Directory(top)
        target.link("again", "a.csv")
        target.link("again", "a.csv")
        assert os.readlink(tmp_path / "again") == "a.csv"
        with pytest.raises(Taken):
            target.link("again", "b.csv")


def test_what_belongs_to_the_code_follows_the_owner_of_its_directory(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        os.chown(tmp_path, 65534, 65534)
    tmp_path.chmod(0o770)
    with opened(tmp_path) as top:
        target = Directory(top, follows_owner=True)
        target.make("a/b")
        with target.new_file("a/b/c", mode=0o644) as new:
            new.settle()
    for path in ("a", "a/b", "a/b/c"):
        status = (tmp_path / path).stat()
        assert (status.st_uid, status.st_gid) == (tmp_path.stat().st_uid, tmp_path.stat().st_gid)
        assert status.st_mode & 0o022 == 0o020
