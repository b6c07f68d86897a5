"""Files that go into a session and come out of it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from zipfile import ZipFile

import pytest
from support.executing import LIVING, run, usually
from support.in_sessions import output

from codeact_team.executors.session import InterpreterCodeExecutor

pytestmark = usually("confined-session", among=LIVING)


async def test_files_go_in_and_out(session: InterpreterCodeExecutor, work_dir: Path) -> None:
    data = bytes(range(256)) * 20_000
    await session.workspace.put("in/deep/data.bin", data)
    assert (
        await output(session, "open('in/deep/data.bin', 'rb').read() == bytes(range(256)) * 20_000")
        == "True\n"
    )
    await output(session, "open('out.bin', 'wb').write(open('in/deep/data.bin', 'rb').read()[::-1])")
    assert await session.workspace.get("out.bin") == data[::-1]
    files = await session.workspace.list()
    assert files["in/deep/data.bin"] == files["out.bin"] == len(data)
    assert (work_dir / "out.bin").stat().st_size == len(data)
    await session.workspace.put("out.bin", "Wörter")
    assert await session.workspace.get("out.bin") == "Wörter".encode()
    await output(session, "rm -r in out.bin", language="sh")


async def test_a_planted_link_is_replaced_and_reaches_no_file_of_the_host(
    session: InterpreterCodeExecutor, work_dir: Path, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("secret")
    await output(session, f"import os; os.symlink({str(victim)!r}, 'link')")
    with pytest.raises(OSError, match=r"link|victim"):
        await session.workspace.get("link")
    await session.workspace.put("link", b"new")
    assert victim.read_text() == "secret"
    assert not (work_dir / "link").is_symlink()
    await output(session, "rm link", language="sh")


@pytest.mark.parametrize("path", ["", "/etc/passwd", "../x", "a/../../x", "a\0b", "."])
async def test_paths_outside_the_workspace_are_misuse(session: InterpreterCodeExecutor, path: str) -> None:
    with pytest.raises(ValueError, match="workspace"):
        await session.workspace.put(path, b"")
    with pytest.raises(ValueError, match="workspace"):
        await session.workspace.get(path)


async def test_files_that_cannot_be_read_or_written_are_errors(session: InterpreterCodeExecutor) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        await session.workspace.get("nowhere")
    await output(session, "mkdir -p d; mkfifo fifo", language="sh")
    with pytest.raises(OSError, match="d"):
        await session.workspace.get("d")
    with pytest.raises(OSError, match="fifo"):
        await session.workspace.get("fifo")
    with pytest.raises(OSError, match="d"):
        await session.workspace.put("d", b"x")
    with pytest.raises(ValueError, match="64 MiB"):
        await session.workspace.put("large", bytes(64 * 1024 * 1024 + 1))
    await output(session, "rm -r d fifo", language="sh")


async def test_a_file_request_that_is_cancelled_leaves_the_session_usable(
    session: InterpreterCodeExecutor,
) -> None:
    content = bytes(15_000_000)
    await session.workspace.put("big", content)
    for turns_of_the_loop in (1, 2, 10, 50):
        getting = asyncio.create_task(session.workspace.get("big"))
        for _ in range(turns_of_the_loop):
            await asyncio.sleep(0)
        if getting.cancel():
            with pytest.raises(asyncio.CancelledError):
                await getting
        else:  # A quick machine was done by then.
            assert getting.result() == content
        assert await output(session, "1 + 1") == "2\n"
    await output(session, "rm big", language="sh")


async def test_what_a_block_has_written_is_in_its_files_though_it_has_left_them_open(
    session: InterpreterCodeExecutor, work_dir: Path
) -> None:
    code = """
import csv
made = open("out.csv", "w")
csv.writer(made).writerow(["a", "b"])
raw = open("raw", "wb")
raw.write(b"data")
"""
    await output(session, code)
    assert ((work_dir / "out.csv").read_text(), (work_dir / "raw").read_bytes()) == ("a,b\n", b"data")
    # whatever is done with them later
    await output(session, "made.write('c\\n'); raw.close(); del raw")
    assert (work_dir / "out.csv").read_text() == "a,b\nc\n"
    assert await output(session, "import os; made.close(); len(made.name)") == "7\n"


WITH_LEFT_OPEN = """
import atexit, zipfile
made = open("out.csv", "w")
made.write("a")
archive = zipfile.ZipFile("out.zip", "w")
archive.writestr("x", "y")
atexit.register(lambda: open("at-exit", "w").write("done"))
"""


@pytest.mark.parametrize("way", ["restart", "finish"])
async def test_an_interpreter_ends_in_order_as_a_script_does(
    session: InterpreterCodeExecutor, work_dir: Path, way: str
) -> None:
    await output(session, WITH_LEFT_OPEN)
    left_open = await getattr(session, way)()
    assert way == "restart" or left_open == ("out.csv", "out.zip")
    assert ((work_dir / "out.csv").read_text(), (work_dir / "at-exit").read_text()) == ("a", "done")
    with ZipFile(work_dir / "out.zip") as archive:
        assert archive.read("x") == b"y"
    assert (await output(session, "'made' in globals()")).endswith("False\n")


async def test_what_does_not_end_in_order_within_a_second_is_killed(
    session: InterpreterCodeExecutor, work_dir: Path
) -> None:
    await output(session, "import atexit, time\natexit.register(time.sleep, 1000)\nmade = open('made', 'w')")
    await session.finish()
    assert (await output(session, "'made' in globals()")).endswith("False\n")


async def test_forks_end_without_doing_anything_more(
    session: InterpreterCodeExecutor, work_dir: Path
) -> None:
    await output(session, "import atexit, tempfile\nkept = tempfile.TemporaryDirectory(dir='.')")
    await output(session, "atexit.register(lambda: open('at-exit', 'w').close())\nNone")
    [fork] = await session.fork()
    await run(fork, "x = 1")
    await fork.stop()
    assert (
        await output(session, "import os; os.path.exists(kept.name), os.path.exists('at-exit')")
        == "(True, False)\n"
    )
