"""Files that a person gives to the code, and those that they get from it."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import unicodedata
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from support.executing import KINDS, Kind, run, usually
from support.small_disk import disk_that_clones

from codeact_team.core.executor_interface import Change
from codeact_team.errors import SandboxError, SettingError
from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.executors.confined import ConfinedCommandLineCodeExecutor
from codeact_team.executors.workspace import container_files
from codeact_team.executors.workspace.directory import own_workspaces
from codeact_team.executors.workspace.workspace import CopyNames

WORK = r"""
import os
print(sorted(os.listdir()), open('folder/again.jsonl').read())
open('sales.csv', 'a').write('3,4\n')
os.makedirs('made/deep')
open('made/deep/new\nline\x1b[31m.txt', 'w').write('hi')
os.chmod('made/deep/new\nline\x1b[31m.txt', 0o755)
open('large', 'wb').write(bytes(3_000_000))
os.mkfifo('fifo')
os.symlink('/etc/passwd', 'made/link')
"""


@pytest.fixture
def data(tmp_path: Path) -> Sequence[Path]:
    folder = tmp_path / "given" / "folder"
    folder.mkdir(parents=True)
    (folder / "x.jsonl").write_text("{}\n")
    (folder / "again.jsonl").symlink_to("x.jsonl")
    (tmp_path / "given" / "sales.csv").write_text("a,b\n1,2\n")
    return [tmp_path / "given" / "sales.csv", folder]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


async def test_a_file_of_many_names_does_not_come_back_as_more_than_the_limit(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_bytes(b"x" * (2 << 20))
    workspace = tmp_path / "workspace"
    async with ConfinedCommandLineCodeExecutor(
        work_dir=workspace, workspace_mib=8, confinement="best_effort"
    ) as executor:
        with pytest.raises(SandboxError, match="38 MiB of them are the same content under other names"):
            await executor.workspace.restore({str(number): kept for number in range(20)}, (), [])
        assert os.listdir(workspace) == []
        await executor.workspace.restore({str(number): kept for number in range(4)}, (), [])
        assert sorted(os.listdir(workspace)) == ["0", "1", "2", "3"]


@pytest.mark.long
async def test_it_is_said_that_a_long_copy_stays(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "big.csv").touch()
    os.truncate(tmp_path / "big.csv", 65 << 20)
    caplog.set_level("INFO")
    for top, stays in {
        None: "",
        tmp_path / "own": f" {tmp_path}/own, where it stays as long as the run is kept",
    }.items():
        with own_workspaces(top):
            executor = ConfinedCommandLineCodeExecutor(data=[tmp_path / "big.csv"])
        async with executor:
            pass
        assert f"copying 65 MiB of data into the workspace{stays}" in caplog.messages


@pytest.mark.long
@pytest.mark.parametrize("kind", ["btrfs", "xfs"])
async def test_a_copy_takes_no_room_until_the_code_changes_it_where_files_can_share_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    caplog.set_level("INFO")
    with disk_that_clones(disk := tmp_path / "disk", kind):
        content = os.urandom(80 << 20)
        (disk / "big.bin").write_bytes(content)
        (disk / "small.csv").write_text("a\n")
        before = free_after_sync(disk)
        executor = ConfinedCommandLineCodeExecutor(
            data=[disk / "big.bin", disk / "small.csv"], work_dir=disk / "work", confinement="best_effort"
        )
        async with executor:
            assert before - free_after_sync(disk) < 8 << 20
            result = await run(executor, "f = open('big.bin', 'r+b')\nf.write(b'mine')\nf.close()")
            assert result.exit_code == 0, result.output
            assert (disk / "work" / "big.bin").read_bytes() == b"mine" + content[4:]
            assert (disk / "big.bin").read_bytes() == content
            assert (disk / "work" / "small.csv").read_text() == "a\n"
            changes = await executor.workspace.changed()
            assert [(file.path, file.change.value) for file in changes.files] == [("big.bin", "changed")]
        assert not [line for line in caplog.messages if line.startswith("copying")], "it takes no time"


def free_after_sync(disk: Path) -> int:
    subprocess.run(["sync", "-f", disk], check=True)
    status = os.statvfs(disk)
    return status.f_bfree * status.f_frsize


async def goes_in_and_out(executor: SandboxedCodeExecutor, out: Path) -> None:
    assert [(file.path, file.head) for file in (await executor.describe()).files] == [
        ("sales.csv", ["a,b", "1,2"]),
        ("folder/x.jsonl", ["{}"]),
    ]
    result = await run(executor, WORK)
    assert "folder" in result.output
    assert "{}" in result.output
    assert await executor.workspace.add("step-1-1.png", b"\x89PNG") == "step-1-1.png"
    changes = await executor.workspace.changed()
    assert [(file.path, file.size, file.change.value) for file in changes.files] == [
        ("large", 3_000_000, "made"),
        ("made/deep/new\nline\x1b[31m.txt", 2, "made"),
        ("sales.csv", 12, "changed"),
        ("step-1-1.png", 4, "made"),
    ]
    assert changes.remark == "links and the like are not listed: 2"
    saved = await executor.workspace.save(changes.files, out)
    assert [file.copy for file in saved] == [
        "large",
        "made/deep/new␤line␛[31m.txt",
        "sales.csv",
        "step-1-1.png",
    ]
    assert (out / "large").read_bytes() == bytes(3_000_000)
    assert (out / "sales.csv").read_text() == "a,b\n1,2\n3,4\n"
    for copy in (file.copy for file in saved if file.copy is not None):
        status = (out / copy).lstat()
        assert stat.S_IMODE(status.st_mode) & 0o7111 == 0
        assert status.st_uid == os.geteuid()
    assert sorted(os.listdir(out)) == ["large", "made", "sales.csv", "step-1-1.png"]
    assert (await executor.workspace.changed()).files == []


@usually("confined")
async def test_data_goes_in_and_what_was_made_or_changed_comes_out(
    kind: Kind, data: Sequence[Path], out: Path
) -> None:
    async with kind.make(data=data) as executor:
        await goes_in_and_out(executor, out)
        assert executor.workspace.path == executor.work_dir
        assert not executor.workspace.lasts
    assert data[0].read_text() == "a,b\n1,2\n"


@pytest.mark.long
@pytest.mark.docker
@pytest.mark.parametrize("name", ["docker", "docker-session"])
async def test_the_same_with_a_workspace_in_the_container(name: str, data: Sequence[Path], out: Path) -> None:
    kind = KINDS[name]
    before = kind.held()
    async with kind.make(data=data, workspace="container") as executor:
        await goes_in_and_out(executor, out)
        assert executor.workspace.path is None
        names = [await executor.workspace.add("step-1-1.png", b"other") for _ in range(2)]
        assert names == ["step-1-1-2.png", "step-1-1-3.png"]
        # a fresh container has the data again, and nothing else
        kind.lose(kind.held() - before)
        listed = await run(executor, "import os; print([n for n in sorted(os.listdir()) if n[:4] != 'tmp_'])")
        assert listed.output.endswith("['folder', 'sales.csv']\n")


@pytest.mark.docker
async def test_data_for_which_a_container_has_no_room_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(3 << 20)
    executor = KINDS["docker"].make(data=[tmp_path / "large"], workspace="container", tmpfs_mib=2)
    with pytest.raises(SettingError, match="tmpfs_mib is 2"):
        await executor.prepare()


confined = pytest.mark.parametrize("kind", ["confined"], indirect=True)


def made(**settings: Any) -> SandboxedCodeExecutor:
    return KINDS["confined"].make(**settings)


@confined
async def test_a_second_run_replaces_what_the_first_has_put_there_unless_it_was_changed(
    kind: Kind, tmp_path: Path, data: Sequence[Path]
) -> None:
    work_dir = tmp_path / "work"
    for rows in ("1,2\n", "5,6\n"):
        data[0].write_text(rows)
        async with kind.make(data=data, work_dir=work_dir) as executor:
            await executor.prepare()
            assert (await run(executor, "print(open('sales.csv').read(), end='')")).output == rows
            assert (await executor.workspace.changed()).files == []
    (work_dir / "sales.csv").write_text("changed by the code")
    executor = kind.make(data=data, work_dir=work_dir)
    for fails in (executor.prepare, executor.start):
        with pytest.raises(SettingError, match=rf"{data[0]} would be sales.csv in the workspace {work_dir}"):
            await fails()
    data[0].write_text("changed by the code")
    async with kind.make(data=data, work_dir=work_dir) as executor:
        await executor.prepare()
    assert sorted(os.listdir(work_dir)) == ["folder", "sales.csv"]


@confined
@pytest.mark.parametrize("name", ["sales.csv", "folder"])
async def test_links_in_the_workspace_are_not_followed(
    kind: Kind, tmp_path: Path, data: Sequence[Path], name: str
) -> None:
    work_dir, victim = tmp_path / "work", tmp_path / "victim"
    victim.mkdir()
    work_dir.mkdir()
    (work_dir / name).symlink_to(victim if name == "folder" else victim / "file")
    executor = kind.make(data=data, work_dir=work_dir)
    for fails in (executor.prepare, executor.start):
        with pytest.raises(SettingError, match="and is not overwritten"):
            await fails()
    assert os.listdir(victim) == []


@confined
async def test_files_are_told_once_and_those_of_the_blocks_not_at_all(kind: Kind, tmp_path: Path) -> None:
    (tmp_path / "theirs").write_text("1")
    async with kind.make(work_dir=tmp_path) as executor:
        await run(executor, "open('a', 'w')")
        assert [file.path for file in (await executor.workspace.changed()).files] == ["a"]
        await run(executor, "open('a', 'w').write('1'); open('theirs', 'a').write('2')")
        changes = (await executor.workspace.changed()).files
        assert [(file.path, file.change) for file in changes] == [
            ("a", Change.CHANGED),
            ("theirs", Change.CHANGED),
        ]
        assert executor.workspace.lasts
    assert sorted(os.listdir(tmp_path)) == ["a", "theirs"]


@confined
async def test_copies_of_names_that_read_alike_have_numbers(kind: Kind, out: Path) -> None:
    names = ["A\u0308", "a\u0308", "a/\u00e4", "A/\u00c4", "x.csv", "X.csv", "x-2.csv", "\u00c4", "\u00e4"]
    async with kind.make() as executor:
        make = f"import os\nfor n in {names}:\n    os.makedirs(os.path.dirname(n) or '.', exist_ok=True)"
        await run(executor, f"{make}\n    open(n, 'w').write(n)")
        files = (await executor.workspace.changed()).files
        saved = await executor.workspace.save(files, out)
        assert sorted(file.path for file in saved) == sorted(names)
        copies = {file.path: file.copy or "" for file in saved}
        read = {unicodedata.normalize("NFC", copy).casefold() for copy in copies.values()}
        assert len(read) == len(names)
        assert {path: (out / copy).read_text() for path, copy in copies.items()} == {n: n for n in names}
        # each stays where it was
        await run(executor, "open('x.csv', 'a').write('more')")
        changed = (await executor.workspace.changed()).files
        assert [file.copy for file in await executor.workspace.save(changed, out)] == [copies["x.csv"]]
    assert (out / copies["x.csv"]).read_text() == "x.csvmore"
    assert (out / copies["X.csv"]).read_text() == "X.csv"


def test_a_name_for_each_of_many_that_read_alike() -> None:
    names = CopyNames()
    alike = ["".join(letters) for letters in product(*zip("abcdefghijk", "ABCDEFGHIJK", strict=True))]
    assert len({names.of(name).casefold() for name in alike}) == len(alike) == 2048


@confined
async def test_what_has_changed_or_vanished_meanwhile_is_told_file_by_file(kind: Kind, out: Path) -> None:
    async with kind.make(workspace_mib=4) as executor:
        sparse = "for n in 'ef': open(n, 'wb').truncate(3 << 20)"
        await run(executor, f"for n in 'abcd': open(n, 'w').write(n)\n{sparse}")
        files = (await executor.workspace.changed()).files
        await run(
            executor,
            "import os\nos.remove('a')\nos.remove('b')\nos.symlink('/etc/passwd', 'b')\nopen('c', 'w')",
        )
        saved = await executor.workspace.save(files, out)
    assert {file.path: file.problem for file in saved if file.copy is None} == {
        "a": "No such file or directory",
        "b": "Too many levels of symbolic links",
        "c": "it became shorter while it was read",
        "f": "it has 3,145,728 bytes, and there is no room for it",
    }
    assert sorted(os.listdir(out)) == ["d", "e"]


@pytest.mark.long
@confined
async def test_a_copy_that_is_cancelled_ends(
    kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(1 << 30)
    executor = kind.make(data=[large], work_dir=tmp_path / "work")
    starting = asyncio.ensure_future(executor.start())
    while not (tmp_path / "work").is_dir() or not os.listdir(tmp_path / "work"):
        await asyncio.sleep(0)
        assert not starting.done()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert os.listdir(tmp_path / "work") in ([], ["large"])
    await executor.stop()


@pytest.mark.docker
async def test_a_container_that_does_nothing_keeps_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container_files, "_SILENCE", 0.5)
    async with KINDS["docker"].make(workspace="container") as executor:
        await run(executor, "open('a', 'w')")
        monkeypatch.setattr(container_files, "_LIST", "sleep 600")
        with pytest.raises(SandboxError, match="has done nothing for"):
            await executor.workspace.changed()
