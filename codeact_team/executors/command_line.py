"""Runs each code block as a process of its own."""

from __future__ import annotations

import hashlib
import logging
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from autogen_core.code_executor import CodeBlock
from pydantic import Field, field_validator

from codeact_team.core.aio import to_the_end
from codeact_team.core.execution import ExecutionResult, HostTools
from codeact_team.errors import SandboxError, SettingError
from codeact_team.executors.block_process import BlockFile, BlockPlace, DirectBlocks, SupervisedBlocks, follow
from codeact_team.executors.environment import Environment
from codeact_team.executors.processes import ProcessServers
from codeact_team.executors.running import (
    AnyRunner,
    BlockError,
    BoundedOutput,
    Call,
    CodeRunner,
    require_size,
)
from codeact_team.executors.settings import ExecutorConfig
from codeact_team.sandbox.base import KILLED, Exit, NoPythonError, Sandbox
from codeact_team.session.processes import ProcessServer
from codeact_team.text.visibility import foreign_encoding

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
        raise SettingError(f"languages: {label!r} cannot be a label: use letters, digits and + # . _ - only")
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


class ProcessPerBlock(CodeRunner[BlockFile, ExecutionResult]):
    """Runs each block as a process of its own. Processes that it leaves running end with it."""

    result_type = ExecutionResult
    lives_on = False
    loss = "The sandbox was lost: {}. Running processes are gone; the next code runs in a fresh sandbox."

    def __init__(self, config: CommandLineConfig) -> None:
        self._delete_tmp_files = config.delete_tmp_files
        self._commands = {
            label.lower(): parse_command(label, command)
            for label, command in {**DEFAULT_LANGUAGES, **config.languages}.items()
        }
        super().__init__(self._commands)
        self._servers = ProcessServers()
        self._place: BlockPlace | None = None
        self._no_python: NoPythonError | None = None

    @property
    def interpreter(self) -> int | None:
        # there is none, so it is always the same one
        return None if self._place is None or self._has_lost_its_server else 0

    @property
    def _has_lost_its_server(self) -> bool:
        return isinstance(self._place, SupervisedBlocks) and self._servers.running(None) is None

    def read(self, block: CodeBlock) -> BlockFile:
        if (command := self._commands.get(block.language.lower())) is None:
            known = ", ".join(self._commands)
            raise BlockError(f"Unsupported language {block.language!r}; this executor runs {known}")
        # for a shell such a comment means nothing
        is_shell = PurePosixPath(command[0]).name in _SHELLS
        if not is_shell and (encoding := foreign_encoding(block.code)):
            raise BlockError(
                f"A comment declares the encoding {encoding[:80]!r}, but the code is stored as UTF-8: leave that "
                "comment out"
            )
        require_size(block)
        code, is_kept = block.code.encode(errors="replace"), _FILENAME.match(block.code) is not None
        return BlockFile(file_of(block), code, command, is_python(command), is_kept)

    async def open(self, environment: Environment) -> None:
        sandbox = environment.sandbox
        assert sandbox is not None, "it runs"
        if self.interpreter is not None:
            return
        try:
            self._place = SupervisedBlocks(await self._guarded_server(environment, sandbox), sandbox.private)
        except NoPythonError as error:
            logger.debug("blocks are slow in this sandbox: %s", error)
            spawn = await sandbox.start_without_python()
            self._no_python, self._place = error, DirectBlocks(spawn, sandbox)

    async def _guarded_server(self, environment: Environment, sandbox: Sandbox) -> ProcessServer:
        server = await self._servers.get(None, sandbox)
        server.performers = environment.egress
        if (refused := environment.refusal_of(server.connection.unguarded)) is not None:
            await to_the_end(self._servers.close())
            raise NoPythonError(f"a supervisor would not be safe in this sandbox: {refused}")
        return server

    async def is_well(self, environment: Environment, call: Call) -> bool:
        server = self._servers.running(None)
        return await (super().is_well(environment, call) if server is None else server.answers())

    async def run(
        self,
        program: BlockFile,
        environment: Environment,
        call: Call,
        output: BoundedOutput,
        result: ExecutionResult,
        tools: HostTools | None = None,
    ) -> Exit:
        sandbox, place = environment.sandbox, self._place
        assert sandbox is not None, "a block runs in a sandbox"
        assert place is not None, "it was opened"
        if result.code_file is None:
            result.code_file = environment.host_path(program.path)
        if self._delete_tmp_files is None and not program.is_kept:
            environment.directory.remove_at_end(program.path)
        try:
            process = await place.start(program, call)
            return Exit(0) if process is None else await follow(process, call, output.write)
        except SandboxError as error:
            if sandbox.running and not self._has_lost_its_server:
                raise
            return Exit(KILLED, lost=str(error))
        finally:
            if self._delete_tmp_files and not program.is_kept and sandbox.running:
                await to_the_end(place.delete(program.path))

    async def serve_processes(self, environment: Environment, user: str | None) -> ProcessServer:
        sandbox = environment.sandbox
        assert sandbox is not None, "it runs"
        own = None if user is None or sandbox.is_own_user(user) else user
        if isinstance(self._place, DirectBlocks) and self._no_python is not None:
            # a block would share the sandbox with a supervisor that does not know of it
            raise self._no_python
        return await self._servers.get(own, sandbox)

    async def close(self) -> str | None:
        lost = self._servers.loss_of(None)
        self._place = None
        await self._servers.close()
        return lost

    def take_over(self, other: AnyRunner) -> None:
        assert isinstance(other, ProcessPerBlock), "both are for the same kind of executor"
        self._servers, other._servers = other._servers, self._servers
        self._place, other._place = other._place, None
