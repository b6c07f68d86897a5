"""Forks and checkpoints of a sandbox are sandboxes and moments of the same face."""

from __future__ import annotations

import asyncio

import pytest
from standalone_sandbox import SandboxKind, output

from codeact_team import AsyncSandbox, ForkError, SandboxError, SettingError, open_sandbox


async def test_forks_run_side_by_side_with_files_of_their_own(sandbox: AsyncSandbox) -> None:
    await output(sandbox, "rows = [1]\nopen('file', 'w').write('old')")
    first, second = await sandbox.fork(2)
    await asyncio.gather(output(first, "rows.append(2)"), second.put("file", "new"))
    assert await output(first, "rows, open('file').read()") == "([1, 2], 'old')\n"
    assert await output(second, "rows, open('file').read()") == "([1], 'new')\n"
    assert await output(sandbox, "rows, open('file').read()") == "([1], 'old')\n"
    for one in (sandbox, first, second):
        assert await output(one, "import os; print(os.getcwd())") == f"{one.workspace_path}\n"
    assert first.workspace_path != second.workspace_path


@pytest.mark.long
async def test_a_fork_can_be_closed_by_itself(sandbox: AsyncSandbox) -> None:
    [fork] = await sandbox.fork()
    async with fork:
        [of_fork] = await fork.fork()
        assert await output(of_fork, "1") == "1\n"
    for closed in (fork, of_fork):
        with pytest.raises(SandboxError, match=r"^the sandbox is closed$"):
            await closed.run_python("1")
    await fork.aclose()
    assert await output(sandbox, "2") == "2\n"


@pytest.mark.long
async def test_forks_are_closed_with_their_sandbox(kind: SandboxKind) -> None:
    async with open_sandbox(kind) as sandbox:
        [fork] = await sandbox.fork()
        [of_fork] = await fork.fork()
        running = asyncio.create_task(of_fork.run_python("while True: pass"))
        await asyncio.sleep(0)
    with pytest.raises(SandboxError, match=r"^the sandbox is closed$"):
        await running
    with pytest.raises(SandboxError, match=r"^the sandbox is closed$"):
        await fork.list()


async def test_a_rollback_goes_back_to_a_checkpoint_which_stays(sandbox: AsyncSandbox) -> None:
    await output(sandbox, "rows = [1]")
    await sandbox.put("file", "old")
    point = await sandbox.checkpoint()
    for _ in range(2):
        await output(sandbox, "rows.clear()\nopen('file', 'w').write('new')")
        await sandbox.rollback(point)
        assert await output(sandbox, "rows") == "[1]\n"
        assert await sandbox.get("file") == b"old"
    await point.aclose()
    with pytest.raises(SandboxError, match="the checkpoint is gone"):
        await sandbox.rollback(point)


async def test_what_cannot_be_copied_is_named(sandbox: AsyncSandbox) -> None:
    await output(sandbox, "log = open('log.txt', 'w')")
    with pytest.raises(ForkError, match=r"log\.txt is open for writing"):
        await sandbox.fork()
    with pytest.raises(ForkError, match=r"log\.txt is open for writing"):
        await sandbox.checkpoint()
    with pytest.raises(SettingError, match="1 to 63"):
        await sandbox.fork(64)
