"""Programs run in the sandbox at the same time as its interpreter, by the terms of Python's subprocess."""

from __future__ import annotations

import asyncio
import io
import subprocess
from collections.abc import AsyncGenerator

import pytest
from standalone_sandbox import SandboxKind, each_kind, output

from codeact_team import AsyncSandbox, ProcessResult, SandboxError, SyncSandbox, TerminalSize, open_sandbox


@each_kind
async def test_a_program_runs_in_the_workspace(sandbox: AsyncSandbox) -> None:
    await output(sandbox, "open('file', 'w').write('content')")
    result = await sandbox.run(["sh", "-c", "pwd; cat file; echo $WORD >&2; exit 3"], env={"WORD": "word"})
    assert isinstance(result, ProcessResult)
    assert (result.returncode, result.stderr) == (3, b"word\n")
    assert result.stdout.decode() == f"{sandbox.workspace_path}\ncontent"
    with pytest.raises(subprocess.CalledProcessError):
        await sandbox.run(["false"], check=True)
    with pytest.raises(subprocess.TimeoutExpired) as expired:
        await sandbox.run(["sh", "-c", "echo begun; sleep 60"], timeout=2)
    assert expired.value.stdout == b"begun\n"
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        await sandbox.run(["no-such-program"])
    with pytest.raises(ValueError, match="argv is empty"):
        await sandbox.run([])


async def pieces() -> AsyncGenerator[bytes]:
    for piece in (b"a", b"", b"bc"):
        await asyncio.sleep(0)
        yield piece


@pytest.mark.long
async def test_input_comes_in_any_form(sandbox: AsyncSandbox) -> None:
    for given in (b"abc", pieces(), [b"a", b"bc"], io.BytesIO(b"abc")):
        assert (await sandbox.run(["cat"], input=given)).stdout == b"abc"


async def test_output_comes_as_it_is_written(sandbox: AsyncSandbox) -> None:
    code = "echo out; read word; echo $word >&2"
    written, heard = asyncio.Event(), list[tuple[str, bytes]]()

    async def answers() -> AsyncGenerator[bytes]:
        await written.wait()
        yield b"word\n"

    async def hear(stream: str, data: bytes) -> None:
        heard.append((stream, data))
        written.set()

    def note(stream: str, data: bytes) -> None:
        heard.append((stream, data))

    await sandbox.run(["sh", "-c", code], input=answers(), on_output=hear)
    assert heard == [("stdout", b"out\n"), ("stderr", b"word\n")]
    heard.clear()
    await sandbox.run(["sh", "-c", code], input=b"x\n", on_output=note)
    assert sorted(heard) == [("stderr", b"x\n"), ("stdout", b"out\n")]


HOLD = """
import fcntl, os, time
if not os.fork() and not os.fork():
    os.setsid()
    file = open("lock", "w")
    fcntl.flock(file, fcntl.LOCK_EX)
    print("held", flush=True)
time.sleep(1000)
"""
IS_FREE = """
import fcntl
with open("lock") as file:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        print(True)
    except BlockingIOError:
        print(False)
"""


async def test_programs_end_with_their_handle_and_with_the_sandbox(kind: SandboxKind) -> None:
    async with open_sandbox(kind) as sandbox:
        await sandbox.put("hold.py", HOLD)
        async with await sandbox.start(["python3", "hold.py"]) as process:
            assert (await process.read()).stdout.startswith(b"held")
            assert (await sandbox.run_python(IS_FREE)).output == "False\n"
        assert (await sandbox.run_python(IS_FREE)).output == "True\n"
        left = await sandbox.start(["sleep", "1000"])
        running = asyncio.create_task(sandbox.run(["sleep", "1000"]))
        await asyncio.sleep(0)
    with pytest.raises(SandboxError, match=r"^the sandbox is closed$"):
        await running
    with pytest.raises(SandboxError):
        await left.wait()
    await left.aclose()


async def test_a_fork_has_programs_of_its_own(sandbox: AsyncSandbox) -> None:
    [fork] = await sandbox.fork()
    await fork.put("file", "of the fork")
    assert (await fork.run(["cat", "file"])).stdout == b"of the fork"
    assert (await sandbox.run(["cat", "file"])).returncode != 0


@pytest.mark.long
def test_a_program_without_an_event_loop_has_the_same_handle(sync_sandbox: SyncSandbox) -> None:
    with sync_sandbox.start(["cat"]) as process:
        process.write(b"hello")
        assert process.read().stdout == b"hello"
        assert (process.args, process.poll(), process.returncode) == (["cat"], None, None)
        assert not process.read_available()
        process.close_stdin()
        assert (process.wait(), process.returncode) == (0, 0)
        assert not process.read()
    with pytest.raises(ValueError, match="closed"):
        process.write(b"")
    with sync_sandbox.start(["sh", "-c", "stty size; sleep 1000"], terminal=TerminalSize(30, 99)) as process:
        assert process.read().stdout == b"30 99\r\n"
        process.terminate()
        assert process.wait() == -15


@pytest.mark.long
def test_lines_of_a_file_are_read_while_the_program_runs(sync_sandbox: SyncSandbox) -> None:
    lines = io.BytesIO(b"line\n" * 50_000)
    assert sync_sandbox.run(["wc", "-l"], input=lines).stdout.split() == [b"50000"]
