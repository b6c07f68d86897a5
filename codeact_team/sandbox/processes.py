"""Options and results of a process in a sandbox, in the terms of Python's ``subprocess``."""

from __future__ import annotations

import json
import os
import subprocess
from collections import deque
from collections.abc import AsyncIterable, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, TypedDict

from codeact_team.core.showing import in_few_words
from codeact_team.errors import SettingError

StreamName: TypeAlias = Literal["stdout", "stderr"]
OutputCallback: TypeAlias = Callable[[StreamName, bytes], Awaitable[None]]
"""Takes a piece of output. No more is read before it returns."""
Input: TypeAlias = bytes | AsyncIterable[bytes]
Stderr: TypeAlias = Literal["apart", "together"]
"""Whether stderr is a stream of its own, or goes to stdout, in the order of writing."""

_OUTPUT_LIMIT = 1 << 20
"""Bytes of each stream that are kept by default."""
_LARGEST_OUTPUT = 64 << 20


class TerminalSize(NamedTuple):
    """The size of a terminal, in characters."""

    rows: int = 24
    columns: int = 80


@dataclass(frozen=True)
class ProcessOutput:
    """Output of a process since it was read last. False if there is none.

    Attributes:
        stdout: The newest bytes; with the bytes of stderr if both go together.
        stderr: The newest bytes of stderr.
        stdout_omitted: The number of bytes before them that were dropped, as they were not read in time.
        stderr_omitted: The same for stderr.
    """

    stdout: bytes = b""
    stderr: bytes = b""
    stdout_omitted: int = 0
    stderr_omitted: int = 0

    def __bool__(self) -> bool:
        return bool(self.stdout or self.stderr or self.stdout_omitted or self.stderr_omitted)


class NewestBytes:
    """The newest bytes of a stream, ``limit`` of them."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._omitted = 0

    def add(self, piece: bytes, omitted: int = 0) -> None:
        """Add a piece, before which ``omitted`` bytes were dropped."""
        self._omitted += omitted
        if not piece:
            return
        self._pieces.append(piece)
        self._size += len(piece)
        while self._size - len(self._pieces[0]) >= self._limit:
            dropped = len(self._pieces.popleft())
            self._size -= dropped
            self._omitted += dropped

    def content(self) -> tuple[bytes, int]:
        """The bytes, and how many before them were dropped."""
        content = b"".join(self._pieces)
        excess = max(0, len(content) - self._limit)
        return content[excess:], self._omitted + excess


async def pass_on(output: ProcessOutput, on_output: OutputCallback) -> None:
    """Call a callback with the pieces of the output, stream by stream."""
    pieces: tuple[tuple[StreamName, bytes], ...] = (("stdout", output.stdout), ("stderr", output.stderr))
    for stream, piece in pieces:
        if piece:
            await on_output(stream, piece)


class NewestOutput:
    """Collects the output of a process, the newest ``limit`` bytes of each stream."""

    def __init__(self, limit: int) -> None:
        self._stdout, self._stderr = NewestBytes(limit), NewestBytes(limit)

    def add(self, output: ProcessOutput) -> None:
        """Add what has come since."""
        self._stdout.add(output.stdout, output.stdout_omitted)
        self._stderr.add(output.stderr, output.stderr_omitted)

    def output(self) -> ProcessOutput:
        """All that is kept."""
        stdout, stdout_omitted = self._stdout.content()
        stderr, stderr_omitted = self._stderr.content()
        return ProcessOutput(stdout, stderr, stdout_omitted, stderr_omitted)


class ProcessResult(subprocess.CompletedProcess[bytes]):
    """The end of a process: a ``subprocess.CompletedProcess`` that knows of limits.

    Attributes:
        args: Its arguments.
        returncode: Its exit code; -n if signal n has ended it.
        stdout: The newest bytes that it has written; with the bytes of stderr if both go together.
        stderr: The newest bytes of stderr.
        stdout_omitted: The number of bytes before them that were dropped.
        stderr_omitted: The same for stderr.
        limit: The limit of the sandbox that a failed process ran into, in a sentence; ``None`` if none is known.
    """

    def __init__(
        self,
        args: Sequence[str],
        returncode: int,
        output: ProcessOutput,
        limit: str | None = None,
    ) -> None:
        super().__init__(args, returncode, output.stdout, output.stderr)
        self.stdout_omitted: int = output.stdout_omitted
        self.stderr_omitted: int = output.stderr_omitted
        self.limit = limit

    def __repr__(self) -> str:
        told = {
            "args": self.args,
            "returncode": self.returncode,
            "stdout": self.stdout,
            "stderr": self.stderr,
        }
        return in_few_words(self, told if self.limit is None else {**told, "limit": self.limit})


class ProcessOptions(TypedDict, total=False):
    """Options of a process.

    Attributes:
        env: Variables in addition to the sandbox's own.
        cwd: Its directory: below the workspace, or absolute, as the sandbox sees it. Default: the workspace.
        timeout: Seconds after which it is killed, with all that it has started. Default: no limit.
        stderr: ``"apart"``, or ``"together"`` to have stderr in stdout, in the order of writing.
        output_limit: The most bytes of each stream that are kept until they are read, the newest; default 1 MiB, at most 64 MiB.
            The process never waits for its reader.
        user: The name or number of another user of the sandbox. Only a container has others. Default: the user of its code.
    """

    env: Mapping[str, str] | None
    cwd: str | os.PathLike[str] | None
    timeout: float | None
    stderr: Stderr
    output_limit: int
    user: str | None


@dataclass(frozen=True)
class CodeFile:
    """A file of code that is written before a process starts which runs it.

    Attributes:
        path: The file, below the directory of the process.
        private: A directory that nothing outside of the sandbox can write. The process reads the code there, by the same name.
        code: The code.
        is_python: Whether the process is a Python, which runs nothing at its start that earlier code may have left.
    """

    path: str
    private: str
    code: bytes
    is_python: bool

    @property
    def to_run(self) -> str:
        """The path by which the process reads it."""
        return f"{self.private}/{os.path.basename(self.path)}"


@dataclass(frozen=True)
class ProcessRequest:
    """A process to be started, with its :class:`ProcessOptions`. Checked when it is made.

    Attributes:
        argv: The program and its arguments. No shell reads them.
        terminal: The size of its terminal; ``None`` if it has none.

    Raises:
        TypeError: If ``argv`` is one string.
        ValueError: If ``argv`` is empty, or something contains a null byte, or a number is out of range.
    """

    argv: Sequence[str]
    env: Mapping[str, str] | None = None
    cwd: str | os.PathLike[str] | None = None
    timeout: float | None = None
    stderr: Stderr = "apart"
    output_limit: int = _OUTPUT_LIMIT
    user: str | None = None
    terminal: TerminalSize | None = None

    def __post_init__(self) -> None:
        if isinstance(self.argv, str | bytes):
            raise TypeError(
                "argv must be a list, of the program and its arguments; for a shell ['sh', '-c', code]"
            )
        if not self.argv:
            raise SettingError("argv is empty: it needs a program")
        strings = [*self.argv, *(self.env or {}), *(self.env or {}).values(), self.cwd or "", self.user or ""]
        if any("\0" in os.fspath(one) for one in strings):
            raise SettingError("embedded null byte: arguments, variables and paths cannot have one")
        if any("=" in name or not name for name in self.env or {}):
            raise SettingError("illegal environment variable name: it is empty, or contains =")
        if self.timeout is not None and not self.timeout > 0:
            raise SettingError(f"timeout is {self.timeout!r}: it must be a positive number of seconds")
        if self.stderr not in ("apart", "together"):
            raise SettingError(f"stderr is {self.stderr!r}: it must be 'apart' or 'together'")
        if not 0 < self.output_limit <= _LARGEST_OUTPUT:
            raise SettingError(
                f"output_limit is {self.output_limit!r}: it must be 1 to {_LARGEST_OUTPUT} bytes"
            )
        if self.terminal is not None and not all(0 < one < 1 << 15 for one in self.terminal):
            raise SettingError(f"terminal is {self.terminal!r}: rows and columns must be positive numbers")

    @property
    def args(self) -> list[str]:
        """The program and its arguments, as strings."""
        return [*map(os.fspath, self.argv)]

    @property
    def directory(self) -> str | None:
        """Its directory, as a string."""
        return None if self.cwd is None else os.fspath(self.cwd)

    def encoded(
        self, *, has_input: bool, runs_out: bool, apart: bool, code_file: CodeFile | None = None
    ) -> bytes:
        """The request for the supervisor; see ``Kind.START``."""
        request: dict[str, object] = {
            "argv": self.args,
            "env": dict(self.env or {}),
            "cwd": self.directory,
            "timeout": self.timeout,
            "together": self.stderr == "together",
            "limit": self.output_limit,
            "has_input": has_input,
            "terminal": self.terminal,
            "apart": apart,
            "runs_out": runs_out,
            "code_file": code_file and (code_file.path, code_file.private, code_file.is_python),
        }
        return json.dumps(request).encode()
