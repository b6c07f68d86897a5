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
from codeact_team.sandboxes.temporary import TemporaryDirectory
from codeact_team.visibility import without_user_info

_MAX_WORDS = 4000
_PROGRESS = re.compile(r"\s*(?:Resolved|Downloading|Downloaded|Prepared|Installed) ")
_NOT_ASKED = "Using CPython"


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
    tell(f"getting {requested} for {interpreter}")
    environment, options = settings_for_uv(os.environ)
    with TemporaryDirectory() as passing:
        process = await asyncio.create_subprocess_exec(
            uv.find_uv_bin(),
            *_arguments(requested, interpreter, directory, passing),
            *options,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env={**environment, "UV_COMPILE_BYTECODE": "0", "NO_COLOR": "1"},
        )
        try:
            said = await _listen(process, tell)
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


def _arguments(
    requested: Requested, interpreter: Interpreter, directory: Path, passing: Path
) -> Sequence[str]:
    """The command's arguments; what is asked for is written to files in ``passing``."""
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
    lines = requested.lines()
    for option, asked in (("--requirements", lines.requirements), ("--constraints", lines.constraints)):
        if asked:
            file = passing / f"{option.strip('-')}.txt"
            file.write_text("\n".join(asked))
            options[option] = str(file)
    command = ["pip", "install", "--no-progress", "--no-sources", "--preview-features", "pylock"]
    command += [word for pair in options.items() for word in pair]
    return command if requested.lock is None else [*command, "--requirements", str(requested.lock)]


async def _listen(process: asyncio.subprocess.Process, tell: Callable[[str], None]) -> str:
    """Pass on how far uv is, and return the last of what it says."""
    assert process.stderr is not None
    said = ""
    async for line in process.stderr:
        text = without_user_info(line.decode(errors="replace")).rstrip()
        if _PROGRESS.match(text):
            tell(text.strip())
        elif not text.startswith(_NOT_ASKED):
            said = f"{said}{text}\n"[-_MAX_WORDS:]
    return said.strip()
