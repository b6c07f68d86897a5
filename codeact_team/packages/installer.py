"""Unpacks packages for another Python into a directory of the host, by uv, without running anything of them."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import uv

from codeact_team.aio import to_the_end
from codeact_team.errors import SandboxError
from codeact_team.packages.interpreters import Interpreter
from codeact_team.packages.pip_settings import settings_for_uv
from codeact_team.packages.requests import Requested

_MAX_WORDS = 4000
_CREDENTIALS = re.compile(r"(?<=://)[^/\s@]+@")


async def install(
    requested: Requested, interpreter: Interpreter, directory: Path, tell: Callable[[str], None]
) -> None:
    """Unpack the packages, and what they need, into ``directory``.

    Args:
        requested: The packages.
        interpreter: What they have to fit.
        directory: An empty one.
        tell: Gets a line about what is done, now and then.

    Raises:
        SandboxError: If they cannot be had.
    """
    environment, options = settings_for_uv(os.environ)
    process = await asyncio.create_subprocess_exec(
        uv.find_uv_bin(),
        *_arguments(requested, interpreter, directory),
        *options,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**environment, "UV_COMPILE_BYTECODE": "0", "NO_COLOR": "1"},
    )
    try:
        said = await _converse(process, "\n".join(requested.requirements), tell)
        code = await process.wait()
    except BaseException:
        if process.returncode is None:
            process.kill()
        await to_the_end(process.wait())
        raise
    if code != 0:
        raise SandboxError(
            f"the packages {requested} cannot be had for {interpreter}; only wheels are used, as nothing of a package "
            f"may run on this machine. uv says:\n{said}"
        )


def _arguments(requested: Requested, interpreter: Interpreter, directory: Path) -> Sequence[str]:
    options = {
        "--target": str(directory),
        "--python": sys.executable,
        "--python-version": interpreter.version,
        "--python-platform": interpreter.platform,
        # nothing of a package is run
        "--only-binary": ":all:",
        # what is in uv's cache may be changed by whoever can write there
        "--link-mode": "copy",
    }
    files = [] if requested.file is None else [str(requested.file)]
    if requested.requirements:
        # none is taken for an option
        files.append("-")
    given = [part for file in files for part in ("--requirements", file)]
    return ["pip", "install", "--no-progress", *(word for pair in options.items() for word in pair), *given]


async def _converse(
    process: asyncio.subprocess.Process, requirements: str, tell: Callable[[str], None]
) -> str:
    """Tell uv what is asked for, and pass on what it says; return the last of that."""
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write(requirements.encode())
    process.stdin.close()
    said = ""
    async for line in process.stderr:
        text = _CREDENTIALS.sub("***@", line.decode(errors="replace")).rstrip()
        said = f"{said}{text}\n"[-_MAX_WORDS:]
        tell(text.strip())
    return said.strip()
