"""Runs each code block as a process of its own."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import shlex
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import PurePosixPath
from typing import Protocol

from autogen_core.code_executor import CodeBlock
from pydantic import Field, field_validator

from codeact_team.core.aio import Turns, to_the_end
from codeact_team.core.execution import ExecutionResult, HostTools
from codeact_team.core.visibility import foreign_encoding
from codeact_team.errors import SandboxError, SettingError
from codeact_team.executors.environment import Environment
from codeact_team.executors.processes import BlockSandbox, ProcessServers
from codeact_team.executors.running import (
    AnyRunner,
    BlockEnd,
    BlockError,
    BoundedOutput,
    Call,
    CodeRunner,
    deadline_after,
    first,
)
from codeact_team.executors.settings import ExecutorConfig
from codeact_team.sandbox.base import KILLED, Exit, Process
from codeact_team.session.processes import ProcessServer

DEFAULT_LANGUAGES: Mapping[str, str] = {
    "python": "python3",
    "sh": "sh",
    "shell": "sh",
    "bash": "bash",
    # a profile is a file of the home directory, and may be an earlier block's
    "pwsh": "pwsh -NoProfile",
    "powershell": "pwsh -NoProfile",
    "ps1": "pwsh -NoProfile",
}
"""The command for each language label; the block's file is its last argument."""

_FILENAME = re.compile(r"\A(?:#|//) *filename: *([^\r\n]*)")
_PYTHON = re.compile(r"(?:.*/)?python[\d.]*")
_LABEL = re.compile(r"[\w+#.-]+")
_SHELLS = frozenset({"sh", "bash", "pwsh"})
_MAX_COMPONENT = 255
_MAX_NAME = 1024


def parse_command(label: str, command: str) -> list[str]:
    """Split the command of a language into words. Raises a ``SettingError`` if it is empty or its quotes do not match."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise SettingError(f"languages: the command of {label!r} cannot be read: {error}") from error
    if not words:
        raise SettingError(f"languages: the command of {label!r} is empty")
    if not _LABEL.fullmatch(label):
        raise SettingError(f"languages: {label!r} cannot be a label: letters, digits and + # . _ - only")
    return words


def is_python(command: Sequence[str]) -> bool:
    """Whether a command runs a file by a Python interpreter, perhaps with options."""
    program, *options = command
    takes_value = ("-X", "-W")
    return _PYTHON.fullmatch(program) is not None and all(
        (option.startswith("-") and not option.startswith(("-m", "-c", "-i"))) or before in takes_value
        for before, option in zip(command, options, strict=False)
    )


def file_of(block: CodeBlock) -> str:
    """The path of a block's file in the workspace: by its ``# filename:`` comment, else by its content.

    Raises a :class:`BlockError` if the comment names a path outside the workspace, or no usable path.
    """
    if (match := _FILENAME.match(block.code)) is None:
        digest = hashlib.sha256(block.code.encode(errors="surrogatepass")).hexdigest()
        return f"tmp_code_{digest}.{block.language.lower()}"
    # a lone surrogate has no bytes
    name = match[1].strip().encode(errors="replace").decode()
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise BlockError(f"Filename is not in the workspace: {name[:80]!r}")
    if not path.parts or "\0" in name or _too_long(path):
        raise BlockError(f"Filename is not usable: {name[:80]!r}")
    module = path.parent if path.name == "__init__.py" else path.with_suffix("")
    if path.suffix == ".py" and str(module) in sys.stdlib_module_names:
        raise BlockError(
            f"Filename {name!r} would hide Python's own module {str(module)!r} from all later code: choose another name"
        )
    return str(path)


def _too_long(path: PurePosixPath) -> bool:
    return len(str(path).encode()) > _MAX_NAME or any(
        len(part.encode()) > _MAX_COMPONENT for part in path.parts
    )


logger = logging.getLogger(__name__)

STOP_TIMEOUT = 1.0
"""Seconds to wait for a sandbox that does not answer to stop; then it stops in the background."""
DELETE_TIMEOUT = 5.0
"""Seconds to delete a block's file; processes of earlier blocks may hinder it."""
INTERRUPT_GRACE = 0.5
"""Seconds between SIGINT, on which Python writes a traceback, and SIGKILL."""
LAST_WORDS_GRACE = 1.0
"""Seconds for the last output of a killed program to arrive."""

_HERE = resources.files(__name__.rpartition(".")[0])
_RUN_BLOCK = (_HERE / "run_block.sh").read_text()
_RUN_PYTHON = (_HERE / "run_python.py").read_text()
_PRIVATE = "codeact-block"
"""The directory that a block's code is read from."""


class BlockPlace(Protocol):
    """Where blocks run one after the other: a sandbox, or a part of one."""

    @property
    def running(self) -> bool: ...

    @property
    def private(self) -> str: ...

    async def spawn(self, argv: Sequence[str]) -> Process: ...

    async def interrupt(self) -> None: ...

    async def kill(self) -> None: ...

    async def stop(self) -> None: ...


class CommandLineConfig(ExecutorConfig):
    """Settings that every command-line executor has."""

    delete_tmp_files: bool | None = None
    """Whether the files that hold the code blocks are deleted as soon as these have run; `false` keeps them for good.
    Default: they are deleted when the executor stops. Those that name themselves stay."""
    languages: dict[str, str] = Field(default_factory=dict)
    """More languages: label to command, which gets the block's file as its last argument."""

    @field_validator("languages")
    @classmethod
    def _commands(cls, languages: dict[str, str]) -> dict[str, str]:
        for label, command in languages.items():
            parse_command(label, command)
        return languages


@dataclass(frozen=True)
class _Program:
    command: Sequence[str]
    code: bytes
    file: str
    is_kept: bool


class ProcessPerBlock(CodeRunner[_Program]):
    """Runs each block as a process of its own. Processes that it leaves running end with it."""

    lives_on = False
    loss = "The sandbox was lost: {}. Running processes are gone; the next code runs in a fresh sandbox."

    def __init__(self, config: CommandLineConfig) -> None:
        self._delete_tmp_files = config.delete_tmp_files
        self._timeout = config.timeout
        self._commands = {
            label.lower(): parse_command(label, command)
            for label, command in {**DEFAULT_LANGUAGES, **config.languages}.items()
        }
        super().__init__(self._commands)
        self._servers = ProcessServers()

    def read(self, block: CodeBlock) -> _Program:
        if (command := self._commands.get(block.language.lower())) is None:
            known = ", ".join(self._commands)
            raise BlockError(f"Unsupported language {block.language!r}; this executor runs {known}")
        # for a shell such a comment means nothing
        is_shell = PurePosixPath(command[0]).name in _SHELLS
        if not is_shell and (encoding := foreign_encoding(block.code)):
            raise BlockError(
                f"A comment says that the code is written in {encoding[:80]!r}, but it is stored as UTF-8: leave that "
                "comment out"
            )
        # a file with a name of its own is a part of the work
        is_kept = _FILENAME.match(block.code) is not None
        return _Program(command, block.code.encode(errors="replace"), file_of(block), is_kept)

    async def run(
        self,
        program: _Program,
        environment: Environment,
        call: Call,
        output: BoundedOutput,
        tools: HostTools | None = None,
    ) -> BlockEnd:
        sandbox = self._place(environment)
        file = environment.host_path(program.file)
        if self._delete_tmp_files is None and not program.is_kept:
            environment.directory.remove_at_end(program.file)
        try:
            as_file = _RUN_PYTHON if is_python(program.command) else ""
            private = f"{sandbox.private}/{_PRIVATE}"
            argv = ["sh", "-c", _RUN_BLOCK, "run_block", program.file, private, as_file, *program.command]
            process = await self._begin(sandbox, argv, call)
            ending = (
                Exit(0) if process is None else await _follow(process, program.code, sandbox, call, output)
            )
        except SandboxError as error:
            if sandbox.running:
                raise
            ending = Exit(KILLED, lost=str(error))
        finally:
            if self._delete_tmp_files and not program.is_kept and sandbox.running:
                await to_the_end(_delete(sandbox, program.file))
        return BlockEnd(ending, code_file=file)

    def result(self, ends: Sequence[BlockEnd], *, state_lost: bool) -> ExecutionResult:
        return ExecutionResult(0, "", code_file=ends[0].code_file if ends else None)

    def _place(self, environment: Environment) -> BlockPlace:
        """Where the next block runs: what a sandbox starts by itself would end the processes in it."""
        sandbox = environment.sandbox
        assert sandbox is not None, "a block runs in a sandbox"
        server = self._servers.running(None)
        return sandbox if server is None else BlockSandbox(sandbox, server)

    async def serve_processes(
        self, environment: Environment, turns: Turns, user: str | None
    ) -> ProcessServer:
        sandbox = environment.sandbox
        assert sandbox is not None, "it runs"
        own = None if user is None or sandbox.is_own_user(user) else user
        if (server := self._servers.running(own)) is not None:
            return server
        # a block that runs would share the sandbox with a supervisor that does not know of it
        async with turns:
            return await self._servers.get(own, sandbox)

    async def close(self) -> str | None:
        await self._servers.close()
        return None

    def take_over(self, other: AnyRunner) -> None:
        assert isinstance(other, ProcessPerBlock), "both are for the same kind of executor"
        self._servers, other._servers = other._servers, self._servers

    async def _begin(self, sandbox: BlockPlace, argv: Sequence[str], call: Call) -> Process | None:
        """Start the program of a block. Returns ``None`` if the call was stopped before.

        Raises a ``SandboxError`` if it cannot start, or not in time; then the sandbox was given up.
        """
        process = await _spawn(sandbox, argv, call.stop)
        if process is None and call.timed_out:
            await first(sandbox.stop(), None, deadline_after(STOP_TIMEOUT))
            raise SandboxError(f"it did not start the block within {self._timeout} s")
        return process


async def _follow(
    process: Process, code: bytes, sandbox: BlockPlace, call: Call, output: BoundedOutput
) -> Exit:
    """Send the code to the program, and pass on its output. Returns how it ended."""
    try:
        await first(_send(process, code), call.stop)
        while chunk := await first(process.read(), call.stop):
            await output.write(chunk)
        if chunk is None:
            await _terminate(process, sandbox, output.write)
        call.block_ended = True
        ending = await process.wait()
    except BaseException:
        await to_the_end(_abandon(process, sandbox))
        raise
    await process.aclose()
    return ending


async def _send(process: Process, data: bytes) -> None:
    await process.write(data)
    # only now: half a program must not be run
    await process.close_stdin()


async def _terminate(
    process: Process, sandbox: BlockPlace, take: Callable[[bytes], Awaitable[None]] | None = None
) -> None:
    """Stop all processes by SIGINT, then by SIGKILL. ``take`` gets the last output."""
    # in any case both: where the program ends by SIGINT, what it forked may not
    for signal, grace in ((sandbox.interrupt, INTERRUPT_GRACE), (sandbox.kill, LAST_WORDS_GRACE)):
        await signal()
        deadline = deadline_after(grace)
        while chunk := await first(process.read(), None, deadline):
            if take is not None:
                await take(chunk)


async def _abandon(process: Process, sandbox: BlockPlace) -> None:
    try:
        await _terminate(process, sandbox)
    finally:
        await process.aclose()


async def _delete(sandbox: BlockPlace, file: str) -> None:
    """Delete a block's file from inside, as hostile code may have replaced it."""
    deadline = deadline_after(DELETE_TIMEOUT)
    try:
        process = await _spawn(sandbox, ["rm", "-f", "--", file], None, deadline)
    except SandboxError as error:
        logger.warning("files of code blocks are left: %s", error)
        return
    if process is None:
        logger.warning("files of code blocks are left: no program starts in the sandbox")
        return
    while chunk := await first(process.read(), None, deadline):
        pass
    if chunk is None:
        logger.warning("files of code blocks are left: `rm` has not ended after %g s", DELETE_TIMEOUT)
        await _abandon(process, sandbox)
    else:
        await process.aclose()


async def _spawn(
    sandbox: BlockPlace, argv: Sequence[str], stop: asyncio.Future[None] | None, deadline: float | None = None
) -> Process | None:
    """Start a program. Returns ``None`` if ``stop`` or the deadline comes first."""

    def spawned() -> Awaitable[Process | None]:
        return first(sandbox.spawn(argv), stop, deadline, undo=lambda late: _abandon(late, sandbox))

    try:
        return await spawned()
    except SandboxError:
        if sandbox.running:
            # what an earlier block has left behind may hold all the processes there may be
            await sandbox.kill()
        if not sandbox.running:
            raise
    return await spawned()
