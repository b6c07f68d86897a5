"""Paths that a person names, on which code may have planted links."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from codeact_team.files.opening import made_named, open_named, parent_of, read_regular, remove_named


def read(path: str | Path) -> bytes:
    with open(open_named(path), "rb") as file:
        return file.read()


@pytest.fixture(autouse=True)
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work" / "deep").mkdir(parents=True)
    (tmp_path / "work" / "deep" / "file").write_text("content")
    (tmp_path / "work" / "to-file").symlink_to("deep/file")
    (tmp_path / "work" / "to-directory").symlink_to("deep")
    (tmp_path / "work" / "loop").symlink_to("loop")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    "path", ["work/deep/file", "./work//deep/./file", "work/deep/../deep/file", "../{name}/work/deep/file"]
)
def test_what_is_no_link_is_opened(tmp_path: Path, path: str) -> None:
    assert read(path.format(name=tmp_path.name)) == b"content"
    assert read(tmp_path / "work" / "deep" / "file") == b"content"


@pytest.mark.parametrize(
    ("path", "link", "target"),
    [
        ("work/to-file", "work/to-file", "deep/file"),
        ("work/to-directory/file", "work/to-directory", "deep"),
        ("work/to-directory/", "work/to-directory", "deep"),
        ("work/to-directory/../deep/file", "work/to-directory", "deep"),
        ("work/loop", "work/loop", "loop"),
    ],
)
def test_links_are_refused_wherever_they_are(path: str, link: str, target: str) -> None:
    with pytest.raises(OSError, match="planted") as raised:
        read(path)
    assert raised.value.errno == errno.ELOOP
    assert (raised.value.strerror or "").startswith(f"{link} is a link to {target}, ")


def test_links_of_the_system_are_followed() -> None:
    assert read("/bin/env") == read(os.path.realpath("/bin/env"))


def test_errors_are_those_of_the_kernel() -> None:
    for path, number in {
        "work/none/x": errno.ENOENT,
        "work/deep/file/x": errno.ENOTDIR,
        "": errno.ENOENT,
    }.items():
        with pytest.raises(OSError, match=os.strerror(number)) as raised:
            read(path)
        assert raised.value.errno == number


def test_a_null_character_is_in_no_path() -> None:
    with pytest.raises(OSError, match="there is a null character in its name"):
        read("work/de\0ep/file")


@pytest.mark.parametrize("path", ["work/deep", "work/deep/", "work/deep/.", "work/deep/x/.."])
def test_a_directory_to_be_made_is_named_in_the_one_above(path: str) -> None:
    with parent_of(path) as (above, name):
        assert os.path.samestat(os.fstat(above), os.stat("work"))
        assert name == "deep"


def test_what_the_process_has_open_already_may_be_a_pipe() -> None:
    # as a shell's <(command) is
    for name in ("/dev/fd/{}", "/proc/self/fd/{}"):
        reading, writing = os.pipe()
        os.write(writing, b"content")
        os.close(writing)
        assert read_regular(name.format(reading), 100) == b"content"
        os.close(reading)


def test_no_descriptor_is_left_open() -> None:
    before = os.listdir("/proc/self/fd")
    for path in ("work/to-file", "work/to-directory/file", "work/none", "work/deep/file/x"):
        with pytest.raises(OSError):  # noqa: PT011
            read(path)
    read("work/deep/file")
    assert os.listdir("/proc/self/fd") == before


def test_directories_are_made_where_they_are_missing(tmp_path: Path) -> None:
    with made_named("work/new/deeper", 0o700) as made:
        assert os.path.samestat(os.fstat(made), os.stat("work/new/deeper"))
    assert (tmp_path / "work/new/deeper").stat().st_mode & 0o777 == 0o700
    with made_named(tmp_path / "work/new/deeper") as there:
        assert os.listdir(there) == []


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ("work/to-directory/new", errno.ELOOP),
        ("work/to-directory", errno.ELOOP),
        ("work/dangling/new", errno.ELOOP),
        ("work/deep/file/new", errno.ENOTDIR),
    ],
)
def test_no_directory_is_made_behind_a_link(tmp_path: Path, path: str, number: int) -> None:
    (tmp_path / "work/dangling").symlink_to("deep/none")
    with pytest.raises(OSError) as raised, made_named(path):  # noqa: PT011
        pass
    assert raised.value.errno == number
    assert [each.name for each in (tmp_path / "work/deep").iterdir()] == ["file"]


def test_a_directory_is_removed_and_no_link_to_one(tmp_path: Path) -> None:
    for path in ("work/to-directory", "work/to-directory/file"):
        with pytest.raises(OSError):  # noqa: PT011
            remove_named(path)
    assert (tmp_path / "work/deep/file").exists()
    remove_named("work/deep")
    assert not (tmp_path / "work/deep").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_directories_that_cannot_be_listed_are_passed_through(tmp_path: Path) -> None:
    # as /home is on many a machine
    program = (
        "import os, sys\n"
        "from codeact_team.files.opening import read_regular\n"
        "os.setgid(65534)\n"
        "os.setuid(65534)\n"
        "print(read_regular(sys.argv[1], 100))\n"
    )
    top = Path(tempfile.mkdtemp())
    try:
        (top / "shared" / "mine").mkdir(parents=True)
        (top / "shared" / "mine" / "file").write_text("content")
        for path, mode in ((top, 0o755), (top / "shared", 0o711), (top / "shared" / "mine", 0o755)):
            path.chmod(mode)
        command = [sys.executable, "-c", program, top / "shared" / "mine" / "file"]
        found = subprocess.run(command, capture_output=True, text=True, cwd="/", check=True)
        assert found.stdout == "b'content'\n"
    finally:
        shutil.rmtree(top)
