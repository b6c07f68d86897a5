"""What the tests of the confined sandbox share."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import pytest
from support.executing import why_not_confined
from support.fork_server import Forked, start

from codeact_team.sandbox.base import Exit, Process
from codeact_team.sandbox.confined.config import ConfinedSandboxConfig
from codeact_team.sandbox.confined.sandbox import ConfinedSandbox

HERE = Path(__file__).parent

_CONTROL_GROUPS = Path("/sys/fs/cgroup")


def delegates_control_groups() -> bool:
    """Whether this process may make control groups with limits."""
    unified = _CONTROL_GROUPS / "cgroup.controllers"
    place = _CONTROL_GROUPS if unified.exists() else _CONTROL_GROUPS / "memory"
    return os.geteuid() == 0 and os.access(place, os.W_OK)


def control_groups(pid: int) -> list[Path]:
    """The directories of the control groups made for the sandbox that a process is in."""
    found: list[Path] = []
    for entry in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, path = entry.split(":", 2)
        if "codeact-team-" in path:
            found.append(_CONTROL_GROUPS / controllers / path.lstrip("/"))
    assert all(map(Path.is_dir, found))
    return found


def confined(workspace: Path, *, workspace_mib: int | None = None, **settings: Any) -> ConfinedSandbox:
    return ConfinedSandbox(
        ConfinedSandboxConfig(**settings), workspace=workspace, workspace_mib=workspace_mib
    )


@contextlib.asynccontextmanager
async def started(workspace: Path, **settings: Any) -> AsyncGenerator[ConfinedSandbox]:
    skip_if_not_confined()
    async with confined(workspace, **settings) as sandbox:
        yield sandbox


def skip_if_not_confined() -> None:
    if (reason := why_not_confined()) is not None:
        pytest.skip(reason)


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


@contextlib.contextmanager
def host(task: str, workspace: Path, *mode: str) -> Generator[Forked]:
    """A process that runs ``confined_host.py``."""
    process = start(
        [str(HERE / "confined_host.py"), task, str(workspace), *mode],
        cwd=HERE,
        environment={**os.environ, "KEY": "host-secret"},
        stderr=2,
    )
    with process:
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
