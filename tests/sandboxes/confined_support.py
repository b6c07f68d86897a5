"""What the tests of the confined sandbox share."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from codeact_team.errors import ConfinementError
from codeact_team.sandboxes.base import Exit, Process
from codeact_team.sandboxes.confined import ConfinedSandbox

HERE = Path(__file__).parent


@contextlib.asynccontextmanager
async def started(workspace: Path, **settings: Any) -> AsyncGenerator[ConfinedSandbox]:
    sandbox = ConfinedSandbox(workspace=workspace, **settings)
    try:
        await sandbox.start()
    except ConfinementError as error:
        pytest.skip(str(error))
    async with sandbox:
        yield sandbox


async def run(sandbox: ConfinedSandbox, *argv: str, stdin: bytes = b"") -> tuple[bytes, Exit]:
    process = await sandbox.spawn(argv)

    async def feed() -> None:
        await process.write(stdin)
        await process.close_stdin()

    try:
        feeding = asyncio.ensure_future(feed())
        output = b""
        while chunk := await process.read():
            output += chunk
        await feeding
        return output, await process.wait()
    finally:
        await process.aclose()


async def line(process: Process) -> bytes:
    """What the process says next; an unbuffered interpreter writes the end of a line by itself."""
    said = b""
    while not said.endswith(b"\n") and (chunk := await asyncio.wait_for(process.read(), 10)):
        said += chunk
    return said


async def python(sandbox: ConfinedSandbox, code: str, *argv: str) -> tuple[str, Exit]:
    output, exit = await run(sandbox, sandbox.python, "-c", code, *argv)
    return output.decode(), exit


@contextlib.asynccontextmanager
async def host(task: str, workspace: Path, *mode: str) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A process that runs ``confined_host.py``."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(HERE / "confined_host.py"), task, str(workspace), *mode),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(HERE.parents[1]), "KEY": "host-secret"},
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
