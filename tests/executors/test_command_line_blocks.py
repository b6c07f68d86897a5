"""Blocks of a command line as processes of the supervisor, and in images where no Python can be one."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest
from support.executing import KINDS, fresh_processes, run
from support.processes import processes_below

from codeact_team.errors import SandboxError
from codeact_team.executors.base import SandboxedCodeExecutor
from codeact_team.executors.confined import ConfinedCommandLineCodeExecutor
from codeact_team.executors.docker import DockerCommandLineCodeExecutor

LEAVES = "(setsid sleep 1000 >/dev/null 2>&1 &)\necho {}"
TOO_OLD = "#!/bin/sh\necho 'Python 3.10 or newer is needed in the sandbox; this is 3.8'\nexit 1\n"
# an image with the programs of a shell, and no other
PROGRAMS = ("cat", "chmod", "ls", "mkdir", "rm", "setsid", "sleep", "cp")


def without_python(work_dir: Path, python: str | None = None) -> dict[str, str]:
    """The environment of a container that finds no Python, or only this program."""
    programs = work_dir / "bin"
    programs.mkdir()
    for name in PROGRAMS:
        (programs / name).symlink_to(f"/usr/bin/{name}")
    (programs / "sh").symlink_to("/bin/sh")
    if python is not None:
        (programs / "python3").write_text(python)
        (programs / "python3").chmod(0o755)
    return {"PATH": "/workspace/bin"}


@pytest.mark.docker
@pytest.mark.parametrize("python", [None, pytest.param(TOO_OLD, marks=pytest.mark.long)])
async def test_an_image_without_a_usable_python_runs_blocks(tmp_path: Path, python: str | None) -> None:
    environment = without_python(tmp_path, python)
    before = KINDS["docker"].held()
    async with DockerCommandLineCodeExecutor(work_dir=tmp_path, environment=environment) as executor:
        for number in range(2):
            assert (await run(executor, LEAVES.format(number), language="sh")).output == f"{number}\n"
        failed = await run(executor, "echo said; exit 3", language="sh")
        assert (failed.output, failed.exit_code) == ("said\n", 3)
        with pytest.raises(SandboxError, match="no interpreter can be started in the sandbox"):
            await executor.processes.run(["ls"])
        # what blocks have left has ended with them
        left = await run(
            executor, "for each in /proc/[0-9]*; do read line <$each/comm && echo $line; done", language="sh"
        )
        assert "sleep" not in left.output
        await executor.restart()
        assert (await run(executor, "echo again", language="sh")).output == "again\n"
    assert KINDS["docker"].held() == before


@fresh_processes
async def test_a_file_that_cannot_be_written_is_the_result_of_its_block(
    executor: SandboxedCodeExecutor,
) -> None:
    await run(executor, "mkdir -p there/code.py", language="sh")
    failed = await run(executor, "# filename: there/code.py\nprint(1)")
    assert (failed.exit_code, "there/code.py: " in failed.output) == (1, True)
    assert (await run(executor, "print(2)")).output == "2\n"


async def test_a_language_whose_program_is_missing_is_a_result(tmp_path: Path) -> None:
    async with ConfinedCommandLineCodeExecutor(
        work_dir=tmp_path, languages={"cobol": "cobolrun --fast"}
    ) as executor:
        result = await run(executor, "DISPLAY 'HI'.", language="cobol")
    assert (result.exit_code, result.output) == (127, "cobolrun: not found\n")


def held() -> int:
    """The descriptors of all processes below this one."""
    count = 0
    for process in processes_below(os.getpid()):
        with suppress(FileNotFoundError):
            count += len(os.listdir(f"/proc/{process}/fd"))
    return count


def sleeping() -> list[int]:
    """The processes below this one that sleep."""
    return [
        process
        for process in processes_below(os.getpid())
        if Path(f"/proc/{process}/cmdline").read_bytes().startswith(b"sleep")
    ]


async def leave_many(number: int) -> None:
    """Run blocks that each leave a process, and look inside whether they are gone."""
    counted: list[str] = []
    async with ConfinedCommandLineCodeExecutor() as executor:
        for block in range(number):
            result = await run(executor, f"{LEAVES.format(block)}; exit {block % 100}", language="sh")
            assert (result.output, result.exit_code) == (f"{block}\n", block % 100)
            if block in (10, number - 1):
                counted.append((await run(executor, "set -- /proc/[0-9]*; echo $#", language="sh")).output)
    assert counted[0] == counted[1]


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_many_blocks_that_each_leave_a_process_leave_nothing() -> None:
    await asyncio.gather(*(leave_many(BLOCKS) for _ in range(AT_ONCE)))
    assert sleeping() == []


@pytest.mark.long
@pytest.mark.skipif(os.geteuid() != 0, reason="as root, to look into the supervisor")
async def test_blocks_leave_no_descriptor_open(tmp_path: Path) -> None:
    async with ConfinedCommandLineCodeExecutor(work_dir=tmp_path) as executor:
        counted: list[int] = []
        for block in range(60):
            await run(executor, LEAVES.format(block), language="sh")
            if block in (10, 59):
                counted.append(held())
    assert counted[0] == counted[1]


AT_ONCE, BLOCKS = 8, 150
"""Executors, and blocks of each."""
