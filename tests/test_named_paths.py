"""Paths that a person names, on which code may have planted links."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from codeact_team.system.named_paths import open_named, parent_of


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


@pytest.mark.parametrize("path", ["work/deep", "work/deep/", "work/deep/.", "work/deep/x/.."])
def test_a_directory_to_be_made_is_named_in_the_one_above(path: str) -> None:
    with parent_of(path) as (above, name):
        assert os.path.samestat(os.fstat(above), os.stat("work"))
        assert name == "deep"


def test_no_descriptor_is_left_open() -> None:
    before = os.listdir("/proc/self/fd")
    for path in ("work/to-file", "work/to-directory/file", "work/none", "work/deep/file/x"):
        with pytest.raises(OSError):  # noqa: PT011
            read(path)
    read("work/deep/file")
    assert os.listdir("/proc/self/fd") == before
