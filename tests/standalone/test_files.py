"""Files of the workspace by relative paths, and any file of the sandbox by absolute ones."""

from __future__ import annotations

import errno
import re
from pathlib import PurePosixPath

import pytest
from standalone_sandbox import each_kind, output

from codeact_team import AsyncSandbox, SettingError


@each_kind
async def test_files_of_the_workspace(sandbox: AsyncSandbox) -> None:
    await sandbox.put("notes/plan.txt", "grüße")
    await sandbox.put(PurePosixPath("data.bin"), b"\0\xff")
    assert await output(sandbox, "open('notes/plan.txt').read()") == "'grüße'\n"
    await output(sandbox, "open('made', 'w').close()")
    assert await sandbox.list() == {"notes/plan.txt": 7, "data.bin": 2, "made": 0}
    assert await sandbox.get("data.bin") == b"\0\xff"
    with pytest.raises(FileNotFoundError, match="nothing"):
        await sandbox.get("nothing")
    with pytest.raises(SettingError, match="is not the path of a file below the workspace"):
        await sandbox.put("../file", "")
    with pytest.raises(OSError, match="more than 1 bytes"):
        await sandbox.get("data.bin", limit=1)


@pytest.mark.parametrize("place", ["/tmp", pytest.param("workspace", marks=pytest.mark.long)])
async def test_a_file_by_its_absolute_path(sandbox: AsyncSandbox, place: str) -> None:
    above = sandbox.workspace_path if place == "workspace" else place
    path = f"{above}/a b/ü: Is a directory/-n"
    for data in (b"first, which is longer", b"\0\xff\n", b""):
        await sandbox.put(path, data)
        assert await sandbox.get(path) == data
        assert await output(sandbox, f"open({path!r}, 'rb').read() == {data!r}") == "True\n"
    await sandbox.put(path, "grüße")
    assert await sandbox.get(PurePosixPath(path)) == "grüße".encode()


@pytest.mark.long
async def test_a_large_file(sandbox: AsyncSandbox) -> None:
    path, data = f"{sandbox.workspace_path}/large", bytes(range(256)) * (1 << 17)
    await sandbox.put(path, data)
    assert await sandbox.get(path) == data
    for limit in (len(data) - 1, 0):
        with pytest.raises(OSError, match=f"more than {limit:,} bytes") as raised:
            await sandbox.get(path, limit=limit)
        assert raised.value.errno == errno.EFBIG
    assert await sandbox.get(path, limit=len(data)) == data


async def test_a_sparse_file_or_an_endless_one_is_too_large(sandbox: AsyncSandbox) -> None:
    await sandbox.run(["truncate", "-s", "50M", "/tmp/sparse"], check=True)
    for path in ("/tmp/sparse", "/dev/zero"):
        with pytest.raises(OSError, match="more than") as raised:
            await sandbox.get(path, limit=1000)
        assert raised.value.errno == errno.EFBIG


async def test_what_cannot_be_read_or_written_is_an_error_with_its_path(sandbox: AsyncSandbox) -> None:
    await sandbox.put("/tmp/file", "")
    await sandbox.run(["mkfifo", "/tmp/pipe"], check=True)
    unreadable = [
        ("/tmp/nothing", FileNotFoundError),
        ("/tmp", IsADirectoryError),
        # which a confined sandbox does not list
        ("/etc", IsADirectoryError),
        ("/tmp/file/below", NotADirectoryError),
        ("/tmp/pipe", OSError),
        (f"/tmp/{'x' * 300}", OSError),
    ]
    for path, error in unreadable:
        with pytest.raises(error, match=re.escape(path)) as raised:
            await sandbox.get(path)
        assert raised.value.filename == path
    unwritable = [*unreadable[1:], ("/proc/nothing", OSError), ("/nothing", OSError)]
    for path, error in unwritable:
        with pytest.raises(error, match=re.escape(path)):
            await sandbox.put(path, "x")
    with pytest.raises(ValueError, match="null byte"):
        await sandbox.get("/tmp/a\0b")


async def test_files_have_the_rights_that_the_code_has(sandbox: AsyncSandbox) -> None:
    path = f"{sandbox.workspace_path}/file"
    await sandbox.put(path, "old")
    await sandbox.run(["chmod", "0", path], check=True)
    with pytest.raises(PermissionError, match="file"):
        await sandbox.get(path)
    with pytest.raises(PermissionError, match="file"):
        await sandbox.put(path, "new")
    await sandbox.run(["chmod", "600", path], check=True)
    assert await sandbox.get(path) == b"old"


@pytest.mark.long
async def test_files_can_be_written_while_code_runs(sandbox: AsyncSandbox) -> None:
    async def answer() -> None:
        """Write the file that the code waits for."""
        await sandbox.put(f"{sandbox.workspace_path}/answer", "42")

    assert await output(sandbox, "tools.answer()\nopen('answer').read()", tools=[answer]) == "'42'\n"
