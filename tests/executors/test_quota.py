"""How much directories have grown to which hostile code writes."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from support.deep_tree import DEPTH, make_deep_tree

from codeact_team.errors import SandboxError
from codeact_team.executors.workspace.directory import Quota
from codeact_team.files import trees

MIB = 1 << 20


async def test_only_what_is_added_counts(tmp_path: Path) -> None:
    (tmp_path / "before").write_bytes(bytes(3 * MIB))
    quota = Quota(2, 4)
    await quota.begin([tmp_path])
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "more").write_bytes(bytes(MIB))
    # as long as it is the same sandbox
    await quota.begin([tmp_path])
    assert await quota.check() is None
    (tmp_path / "inner" / "much").write_bytes(bytes(2 * MIB))
    assert await quota.check() == "workspace_mib: 2"
    (tmp_path / "before").unlink()
    assert await quota.check() is None
    for number in range(4):
        (tmp_path / str(number)).touch()
    assert await quota.check() == "workspace_files: 4"


async def test_what_is_being_removed_is_not_hindered(tmp_path: Path) -> None:
    quota = Quota(1, None)
    await quota.begin([tmp_path])
    for number in range(3):
        (tmp_path / str(number)).write_bytes(bytes(MIB))
    assert await quota.check() == "workspace_mib: 1"
    (tmp_path / "0").unlink()
    assert await quota.check() is None
    # before it removes anything, code may look around
    assert await quota.check() is None
    (tmp_path / "3").write_bytes(bytes(2 * MIB))
    assert await quota.check() == "workspace_mib: 1"


async def test_a_file_with_two_names_and_one_with_holes_take_what_they_take(tmp_path: Path) -> None:
    quota = Quota(2, None)
    await quota.begin([tmp_path])
    (tmp_path / "one").write_bytes(bytes(MIB))
    os.link(tmp_path / "one", tmp_path / "two")
    os.link(tmp_path / "one", tmp_path / "three")
    with (tmp_path / "holes").open("wb") as file:
        file.truncate(100 * MIB)
    assert await quota.check() is None


async def test_no_link_is_followed(tmp_path: Path) -> None:
    workspace, outside = tmp_path / "workspace", tmp_path / "outside"
    for directory in (workspace, outside):
        directory.mkdir()
    (outside / "big").write_bytes(bytes(2 * MIB))
    quota = Quota(1, None)
    await quota.begin([workspace])
    (workspace / "link").symlink_to(outside)
    (workspace / "loop").symlink_to(workspace)
    assert await quota.check() is None


async def test_a_workspace_that_is_gone_is_empty(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    quota = Quota(1, 1)
    await quota.begin([workspace])
    shutil.rmtree(workspace)
    assert await quota.check() is None


async def test_a_tree_of_any_depth_is_counted(in_memory: Path) -> None:
    quota = Quota(None, DEPTH - 1)
    await quota.begin([in_memory])
    make_deep_tree(in_memory)
    limit = await quota.check()
    trees.remove(str(in_memory / "deep"))
    assert limit == f"workspace_files: {DEPTH - 1}"
    assert await quota.check() is None


@pytest.mark.skipif(os.geteuid() != 0, reason="as root, to be two users")
async def test_a_directory_that_cannot_be_read_counts_as_too_much_unless_it_was_there(
    enterable: Path,
) -> None:
    workspace = enterable / "workspace"
    for path in (enterable, workspace, workspace / "theirs", workspace / "ours"):
        path.mkdir(exist_ok=True)
        if path.name != "theirs":
            os.chown(path, 65534, 65534)
    (workspace / "theirs").chmod(0o700)
    quota = Quota(1, 10)
    os.seteuid(65534)
    try:
        await quota.begin([workspace])
        assert await quota.check() is None
        assert await quota.exceeded_by_copies("", 1) is None
        os.seteuid(0)
        (workspace / "made").mkdir(mode=0o700)
        os.seteuid(65534)
        assert "a directory was made that cannot be read" in str(await quota.exceeded_by_copies("", 1))
        (workspace / "ours").chmod(0o300)
        limit = await quota.check()
        with pytest.raises(SandboxError, match=r"cannot be counted: .*ours.* set `workspace_mib` and"):
            await Quota(1, 10).begin([workspace])
        await Quota(None, None).begin([workspace])
    finally:
        os.seteuid(0)
    assert limit is not None
    assert limit.startswith("workspace_mib: 1, but the contents cannot be counted: ")
