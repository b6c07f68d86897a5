"""Files anywhere in a sandbox, written and read by its own programs: with the rights that its code has."""

from __future__ import annotations

import errno
import os
import subprocess

from codeact_team.executors.session import InterpreterCodeExecutor
from codeact_team.sandbox.processes import ProcessResult

MAX_BYTES = 64 << 20
"""The largest file that can be read or written."""

_TIMEOUT = 60.0
_NO_PIPE = '[ -p "$1" ] && echo ": Invalid argument" >&2 && exit 1'
"""A pipe without another end would be waited for."""
_WRITE = f'{_NO_PIPE}; {{ [ -d "${{1%/*}}/" ] || mkdir -p -- "${{1%/*}}/"; }} && exec cat >"$1"'
_NO_DIRECTORY = '[ -d "$1" ] && echo ": Is a directory" >&2 && exit 1'
"""One that may not be opened is a directory, too."""
_READ = f'{_NO_PIPE}; {_NO_DIRECTORY}; exec head -c "$2" -- "$1"'
_CODES = {os.strerror(code): code for code in errno.errorcode}
_IN_ENGLISH = {"LC_ALL": "C"}


async def write_file(executor: InterpreterCodeExecutor, path: str, data: bytes) -> None:
    """Write a file in its place, after making missing directories.

    Args:
        executor: Of the sandbox.
        path: Its absolute path in the sandbox.
        data: Its content.

    Raises:
        OSError: If the sandbox cannot write it.
        SandboxError: If the sandbox ends meanwhile.
    """
    if len(data) > MAX_BYTES:
        raise too_large(path, MAX_BYTES)
    await _run(executor, _WRITE, path, input=data)


async def read_file(executor: InterpreterCodeExecutor, path: str, limit: int) -> bytes:
    """Read a file.

    Args:
        executor: Of the sandbox.
        path: Its absolute path in the sandbox.
        limit: The most bytes that it may have.

    Raises:
        OSError: If the sandbox cannot read it, or it is larger.
        SandboxError: If the sandbox ends meanwhile.
    """
    result = await _run(executor, _READ, path, str(limit + 1), output_limit=max(limit, 1))
    if result.stdout_omitted or len(result.stdout) > limit:
        raise too_large(path, limit)
    return result.stdout


async def _run(
    executor: InterpreterCodeExecutor,
    script: str,
    path: str,
    *arguments: str,
    input: bytes | None = None,
    output_limit: int = 1 << 16,
) -> ProcessResult:
    try:
        result = await executor.processes.run(
            ["sh", "-c", script, "sh", path, *arguments],
            input=input,
            env=_IN_ENGLISH,
            timeout=_TIMEOUT,
            output_limit=output_limit,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), path) from None
    if result.returncode:
        raise _failure(result, path)
    return result


def _failure(result: ProcessResult, path: str) -> OSError:
    """The error of a failed program, by its last words."""
    words = result.stderr.decode(errors="replace").strip()
    reason = words.rpartition(": ")[2]
    code = _CODES.get(reason)
    if code == errno.EEXIST:
        # a file is in the place of a directory
        code = errno.ENOTDIR
    if code is None:
        return OSError(errno.EIO, result.limit or words or f"exit code {result.returncode}", path)
    return OSError(code, os.strerror(code), path)


def too_large(path: str, limit: int) -> OSError:
    """The error for a file that has more than ``limit`` bytes."""
    return OSError(errno.EFBIG, f"it has more than {limit:,} bytes", path)
