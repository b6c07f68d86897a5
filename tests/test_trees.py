"""Removing trees that hostile code has made."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.deep_tree import make_deep_tree

from codeact_team.files import trees

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="hostile code runs on Linux")


def test_no_link_is_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o555)
    (kept / "file").write_text("kept")
    tree = tmp_path / "tree"
    (tree / "inner").mkdir(parents=True)
    (tree / "link").symlink_to(kept)
    (tree / "inner" / "link").symlink_to("..")
    os.link(kept / "file", tree / "hard")
    trees.remove(str(tree))
    assert not tree.exists()
    assert (kept.stat().st_mode & 0o777, (kept / "file").read_text()) == (0o555, "kept")
    (tmp_path / "link").symlink_to(kept)
    with pytest.raises(NotADirectoryError):
        trees.remove(str(tmp_path / "link"))


def test_a_tree_may_be_deep(in_memory: Path) -> None:
    # a walk into it needed more stack than there is, more descriptors, or a longer path
    make_deep_tree(in_memory)
    trees.remove(str(in_memory / "deep"))
    assert list(in_memory.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can leave a file that its owner cannot remove")
def test_what_cannot_be_removed_is_told_and_does_not_keep_the_rest(enterable: Path) -> None:
    tree = enterable / "tree"
    for name in ("a", "of-root", "z"):
        (tree / name / "inner").mkdir(parents=True)
    for path in (tree, *tree.rglob("*")):
        if "of-root" not in path.parts:
            os.chown(path, 65534, 65534)
    os.chown(enterable, 65534, 65534)
    os.seteuid(65534)
    try:
        with pytest.raises(PermissionError):
            trees.remove(str(tree))
    finally:
        os.seteuid(0)
    assert [entry.name for entry in tree.iterdir()] == ["of-root"]
