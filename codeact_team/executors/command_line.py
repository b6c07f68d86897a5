"""How code runs in a fresh process per block, wherever the sandbox is."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from importlib import resources

from autogen_core.code_executor import CodeBlock
from pydantic import Field, field_validator

from codeact_team.aio import to_the_end
from codeact_team.errors import SandboxError
from codeact_team.execution import ExecutionResult, Outcome
from codeact_team.executors.base import LOST_EXIT_CODE, ExecutorConfig, SandboxedCodeExecutor, deadline_after
from codeact_team.executors.languages import DEFAULT_LANGUAGES, BlockError, file_of, parse_command
from codeact_team.executors.output import Output
from codeact_team.executors.supervision import Call, communicate, end, first
from codeact_team.executors.workspace import HostWorkspace
from codeact_team.sandboxes.base import Exit, Process, Sandbox

logger = logging.getLogger(__name__)

DELETE_TIMEOUT = 2.0
"""Seconds to delete the blocks' files; what earlier blocks have left running may hinder it."""

_RUN_BLOCK = (resources.files(__name__.rpartition(".")[0]) / "run_block.sh").read_text()


class CommandLineConfig(ExecutorConfig):
    """Settings that every command-line executor has."""

    delete_tmp_files: bool = False
    """Whether the files that hold the code blocks are deleted after they ran."""
    languages: dict[str, str] = Field(default_factory=dict)
    """More languages: label to command, which gets the block's file as its last argument."""

    @field_validator("languages")
    @classmethod
    def _commands(cls, languages: dict[str, str]) -> dict[str, str]:
        for label, command in languages.items():
            parse_command(label, command)
        return languages


class CommandLineCodeExecutor(SandboxedCodeExecutor):
    """Runs each code block as a process of its own in a sandbox that starts on first use.

    Args:
        settings: Time limit, languages, and what becomes of the blocks' files.
        workspace: The workspace's directory on the host.
    """

    def __init__(self, settings: CommandLineConfig, workspace: HostWorkspace) -> None:
        super().__init__(settings, workspace)
        self._delete_tmp_files = settings.delete_tmp_files
        self._commands = {
            label.lower(): parse_command(label, command)
            for label, command in {**DEFAULT_LANGUAGES, **settings.languages}.items()
        }

    @property
    def supported_languages(self) -> Sequence[str]:
        return tuple(self._commands)

    async def _clean_up(self, call: Call) -> None:
        if self._delete_tmp_files:
            await to_the_end(self._delete(call.files))

    async def _delete(self, files: list[str]) -> None:
        """Delete blocks' files, from inside: the host does not touch what hostile code may have replaced."""
        sandbox = self._sandbox
        if not files or sandbox is None or not sandbox.running:
            return
        try:
            process = await _spawn(sandbox, ["rm", "-f", "--", *files])
        except SandboxError as error:
            logger.warning("files of code blocks are left: %s", error)
            return
        deadline = deadline_after(DELETE_TIMEOUT)
        while await first(process.read(), None, deadline):
            pass
        await process.aclose()

    async def _run_block(
        self, block: CodeBlock, call: Call, output: Output, result: ExecutionResult
    ) -> AsyncGenerator[str, None]:
        try:
            command = self._command_for(block)
            file = file_of(block)
        except BlockError as error:
            result.exit_code, result.outcome = 1, Outcome.NOT_RUN
            yield output.add_text(str(error))
            return
        result.code_file = result.code_file or self._host_path(file)
        call.files.append(file)
        process: Process | None = None
        ending: Exit | None = None
        sandbox = self._sandbox
        try:
            if sandbox is not None and not call.stop.done():
                call.deadline = deadline_after(self._timeout)
                process = await _spawn(sandbox, ["sh", "-c", _RUN_BLOCK, "run_block", file, *command])
                async with aclosing(communicate(process, block.code, sandbox, call)) as chunks:
                    async for chunk in chunks:
                        yield output.add(chunk)
                ending = await process.wait()
        except SandboxError as error:
            if sandbox is None or sandbox.running:
                raise
            ending = Exit(LOST_EXIT_CODE, lost=str(error))
        except BaseException:
            if process is not None and sandbox is not None:
                await to_the_end(end(process, sandbox))
            raise
        finally:
            if process is not None:
                await process.aclose()
        yield output.add_text(self._conclude(ending, sandbox, call, output, result))

    def _command_for(self, block: CodeBlock) -> list[str]:
        if (command := self._commands.get(block.language.lower())) is None:
            known = ", ".join(self._commands)
            raise BlockError(f"Unsupported language {block.language!r}; this executor runs {known}")
        return command


async def _spawn(sandbox: Sandbox, argv: Sequence[str]) -> Process:
    try:
        return await sandbox.spawn(argv)
    except SandboxError:
        if not sandbox.running:
            raise
        # what an earlier block has left behind may hold all the processes there may be
        await sandbox.kill()
        return await sandbox.spawn(argv)
