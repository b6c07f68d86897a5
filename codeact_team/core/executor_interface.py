"""What an executor offers beyond AutoGen's ``CodeExecutor``, and what is told of its workspace.

Agents accept any AutoGen executor. One that is a :class:`StreamingCodeExecutor` also streams its output, says which languages
it runs, and tells more about a result than an exit code.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock, CodeExecutor

from codeact_team.core.aio import streamed
from codeact_team.core.execution import Artifact, ExecutionResult, HostTools
from codeact_team.core.sandbox_description import DataFile, SandboxDescription
from codeact_team.errors import ForkError, SandboxError


class Change(StrEnum):
    """What has become of a file of the workspace."""

    MADE = "made"
    CHANGED = "changed"


@dataclass(frozen=True)
class ChangedFile:
    """A file that code has made or changed.

    Attributes:
        path: Where in the workspace, as :func:`os.fsdecode` has it; hostile data.
        size: In bytes.
        change: What has become of it.
    """

    path: str
    size: int
    change: Change


@dataclass(frozen=True)
class Changes:
    """The files that code has made or changed.

    Attributes:
        files: In the order of their paths; ten thousand at most.
        remark: What else there is to say, such as how many more there are.
    """

    files: Sequence[ChangedFile] = ()
    remark: str = ""


@dataclass(frozen=True)
class SavedFile:
    """What became of a file that was to be copied out of the workspace.

    Attributes:
        path: As :attr:`ChangedFile.path` has it.
        copy: The path of the copy below the directory that it was copied to; ``None`` where there is none.
        problem: Why not.
        is_due: Whether it could not be written, as where a disk is full, and so is to be copied once a person has made that possible.
    """

    path: str
    copy: str | None
    problem: str = ""
    is_due: bool = False


@dataclass(frozen=True, slots=True)
class RecordedFile:
    """A file of the workspace at one time.

    Attributes:
        digest: What its content is kept as; ``None`` where it is not: it is too long, or must not be.
        size: In bytes.
        is_executable: Whether its owner may run it.
    """

    digest: str | None
    size: int
    is_executable: bool


@dataclass(frozen=True)
class Workspace:
    """Where the files of the code are.

    Attributes:
        path: The directory of this machine; ``None`` where they are in a container, or the directory is yet to be made.
        lasts: Whether it is there when the executor has stopped.
    """

    path: Path | None
    lasts: bool


Emit: TypeAlias = Callable[[str], Awaitable[None]]
"""Takes a piece of output as it comes; the code's output is not read on before it returns."""


class StreamingCodeExecutor(CodeExecutor):
    """An AutoGen code executor that keeps the code in a sandbox, and whose output can be read while the code runs."""

    def data_files(self) -> Sequence[DataFile]:
        """The files that a person has given to the code, in the workspace when the first block runs. Looks once, and blocks.

        Raises:
            ValueError: If something cannot be given, such as a file that is not there.
        """
        return ()

    @property
    def workspace(self) -> Workspace | None:
        """Where the files of the code are, if there is such a place."""
        return None

    @property
    def reached(self) -> Sequence[Path]:
        """The files and directories of this machine that the code can read or write, but for a temporary workspace."""
        return ()

    async def changed_files(self) -> Changes:
        """The files that code has made or changed since the start, or since this was asked last. Waits for a block to end.

        Raises:
            SandboxError: If that cannot be found out.
        """
        return Changes()

    def changed_before(self, changes: Mapping[str, Change]) -> None:
        """Let :meth:`changed_files` tell more, the next time: what code had changed before the start, as a run is resumed.

        Args:
            changes: By path, what had become of each file; one that is not there any more is not told.
        """

    async def saved_pictures(self, most: int) -> Sequence[Artifact]:
        """PNG files that code has made or changed since the start, or since this was asked last; none that is too large.

        Waits for a block to end.

        Args:
            most: How many.

        Raises:
            SandboxError: If what has changed cannot be found out.
        """
        return ()

    async def save_files(
        self, files: Sequence[ChangedFile], directory: str | os.PathLike[str] | int
    ) -> Sequence[SavedFile]:
        """Copy files of the workspace. Nothing is overwritten but copies made so before that nobody has changed since.

        Where a name is taken, the copy gets one with a number. No link is followed or copied, no hidden file is copied, and
        no copy is executable.

        Args:
            files: Which, as :meth:`changed_files` tells them.
            directory: Where to, a directory of this machine that exists: its path, or an open descriptor of it.
        """
        return [SavedFile(file.path, None, "there is no workspace to copy it from") for file in files]

    async def add_file(self, name: str, data: bytes) -> str:
        """Add a file to the workspace. Nothing is overwritten; where the name is taken, it gets one with a number.

        Returns:
            The name that it has got.

        Raises:
            OSError: If it cannot be added.
            SandboxError: If there is no sandbox that it can be added to.
        """
        raise SandboxError("there is no workspace to add it to")

    @property
    def is_contained(self) -> bool:
        """Whether code can change nothing but its workspace, so that running it again there changes nothing else.

        Known once the executor has started.
        """
        return False

    async def record_files(self, keep: Callable[[bytes], str | None]) -> Mapping[str, RecordedFile]:
        """What is in the workspace, by path. Waits for a block to end.

        Args:
            keep: Keeps the content of a file, and returns its digest; ``None`` if it does not. It may block. Called for what
                has changed since this was asked last.

        Raises:
            SandboxError: If that cannot be found out.
        """
        return {}

    async def restore_files(
        self, contents: Mapping[str, Path], executable: Container[str], gone: Sequence[str]
    ) -> None:
        """Write files of the workspace, whatever is in their place, and remove others.

        Args:
            contents: By path, the file of this machine that has the content.
            executable: The paths of those that their owner may run.
            gone: The paths of those to be removed.

        Raises:
            SandboxError: If that cannot be done.
        """
        raise SandboxError("there is no workspace to restore files in")

    @property
    @abstractmethod
    def supported_languages(self) -> Sequence[str]:
        """The labels of the languages this executor runs."""

    @property
    @abstractmethod
    def loosenings(self) -> Sequence[str]:
        """Each setting that is weaker than the default, in words for the person who opens the team."""

    @abstractmethod
    async def run_code_blocks(
        self,
        code_blocks: list[CodeBlock],
        cancellation_token: CancellationToken,
        *,
        user: object | None = None,
        emit: Emit | None = None,
    ) -> ExecutionResult:
        """Run the blocks in order until one fails, and return the result.

        Args:
            code_blocks: What to run.
            cancellation_token: Stops it, and the wait for its turn.
            user: Whose code it is, where several agents share the executor: any object that lives as long as the agent.
                Default: the executor's owner.
            emit: Gets the output as it comes. What it raises stops the code.

        Raises:
            SandboxError: If no code can run here at all (no engine, no image, no confinement).
        """

    def execute_code_blocks_stream(
        self,
        code_blocks: list[CodeBlock],
        cancellation_token: CancellationToken,
        *,
        user: object | None = None,
    ) -> AsyncGenerator[str | ExecutionResult, None]:
        """Run the blocks as :meth:`run_code_blocks` does.

        Yields:
            Chunks of output as they come, then the :class:`ExecutionResult`.
        """
        return streamed(
            lambda emit: self.run_code_blocks(code_blocks, cancellation_token, user=user, emit=emit)
        )

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> ExecutionResult:
        """Run the blocks as :meth:`run_code_blocks` does, as the executor's owner."""
        return await self.run_code_blocks(code_blocks, cancellation_token)

    async def prepare(self) -> None:
        """Get what has to be there before the executor can start, such as packages from an index.

        Costs next to nothing if it is there. :meth:`start` does it, too; but whoever pays for a model wants to know
        before whether it can be had.

        Raises:
            SandboxError: If it cannot be had.
        """

    async def describe(self) -> SandboxDescription | None:
        """What there is to know of the sandbox before code runs in it, asked from the sandbox itself.

        It need not have started. Costs next to nothing once it has been asked.

        Returns:
            ``None`` if nothing is known.

        Raises:
            SandboxError: If what :meth:`prepare` gets cannot be had.
        """
        return None

    async def release(self, user: object) -> bool:
        """Let a user go who needs nothing any more of what their code has left behind.

        Restarts, unless code of another user has run since the last start. Waits until no block of others runs.

        Args:
            user: As given to :meth:`run_code_blocks`.

        Returns:
            Whether what the code has left behind is gone.

        Raises:
            SandboxError: If the sandbox cannot start again.
        """
        await self.restart()
        return True


class Checkpoint(ABC):
    """The variables and files of a session as they were at one time; see :meth:`SessionCodeExecutor.checkpoint`."""

    @abstractmethod
    async def aclose(self) -> None:
        """Forget them. Idempotent."""


class SessionCodeExecutor(StreamingCodeExecutor):
    """A code executor whose Python blocks share one living interpreter; its results are :class:`SessionResult`.

    One thing at a time: a file request waits until the stream of a block has been read to its end, or closed.
    """

    @abstractmethod
    async def run_code_blocks(
        self,
        code_blocks: list[CodeBlock],
        cancellation_token: CancellationToken,
        *,
        user: object | None = None,
        tools: HostTools | None = None,
        emit: Emit | None = None,
    ) -> ExecutionResult:
        """Run the blocks in order until one fails, and return the result, a :class:`SessionResult`.

        A user whose variables are gone by a restart, a time-out or the like is told so in the output of their next
        block, and by ``state_lost``, whoever caused it.

        Args:
            code_blocks: What to run.
            cancellation_token: Stops it, and the wait for its turn.
            user: Whose code it is; see :meth:`StreamingCodeExecutor.run_code_blocks`.
            tools: What the Python code may call on the host. All calls have ended when a block has.
            emit: Gets the output as it comes. What it raises stops the code.

        Raises:
            SettingError: If code of a user with other :attr:`HostTools.rights` has run in the interpreter.
            SandboxError: If no code can run here at all (no engine, no image, no confinement).
        """

    def execute_code_blocks_stream(
        self,
        code_blocks: list[CodeBlock],
        cancellation_token: CancellationToken,
        *,
        user: object | None = None,
        tools: HostTools | None = None,
    ) -> AsyncGenerator[str | ExecutionResult, None]:
        """Run the blocks as :meth:`run_code_blocks` does.

        Yields:
            Chunks of output as they come, then the :class:`SessionResult`.
        """
        return streamed(
            lambda emit: self.run_code_blocks(
                code_blocks, cancellation_token, user=user, tools=tools, emit=emit
            )
        )

    async def fork(self, count: int = 1) -> Sequence[SessionCodeExecutor]:
        """Make branches: executors with the variables of this one as they are now, which run side by side with it.

        A branch has a copy of the workspace, to which relative paths lead; by an absolute path it reaches the workspace
        itself. It has the limits of this sandbox, together with all others in it, and other random numbers. It ends when
        it is stopped, or when this executor stops.

        Args:
            count: How many: 1 to 63.

        Raises:
            SettingError: If ``count`` is no such number.
            ForkError: If code has left something open or running that a copy could not have: the text says what.
            SandboxError: If the sandbox cannot start.
        """
        raise ForkError(f"{type(self).__name__} has no branches")

    async def promote(self, branch: SessionCodeExecutor, *, user: object | None = None) -> None:
        """Go on where a branch has got to: its variables and files take the place of those that are here. It ends with that.

        Args:
            branch: One that :meth:`fork` has returned.
            user: Who asks for it; others are told that their variables are other ones now.

        Raises:
            SettingError: If it is no branch of this executor.
            SandboxError: If it has ended.
        """
        raise ForkError(f"{type(self).__name__} has no branches")

    async def checkpoint(self) -> Checkpoint:
        """Keep the variables and files as they are now, to go back to; as much of the memory as the code changes from now on.

        Raises:
            ForkError: See :meth:`fork`.
            SandboxError: If the sandbox cannot start.
        """
        raise ForkError(f"{type(self).__name__} has no checkpoints")

    async def rollback(self, to: Checkpoint, *, user: object | None = None) -> None:
        """Go back to a checkpoint, which stays: to its variables, and to its files at the path where these were.

        What tools of the host have done is not undone, and neither are changes of files outside the workspace.

        Args:
            to: What :meth:`checkpoint` has returned.
            user: See :meth:`promote`.

        Raises:
            SettingError: If it is no checkpoint of this executor.
            SandboxError: If it is gone, such as with the sandbox.
        """
        raise ForkError(f"{type(self).__name__} has no checkpoints")

    @abstractmethod
    def add_setup(self, code: str) -> None:
        """Run Python ``code`` in the interpreter before the next block, and in each that replaces it.

        The same code is added once. Where it fails, whoever runs the next block gets a ``SettingError``.
        """

    @abstractmethod
    async def put_file(self, path: str, data: bytes | str, *, temporary: bool = False) -> str:
        """Write a file of the workspace; directories are made, and a link in its place is replaced.

        Args:
            path: Below the workspace.
            data: Its content, at most 64 MiB; text is written as UTF-8.
            temporary: Whether the file is kept apart, in a directory of the workspace that is removed when the executor
                stops; ``path`` is then a name alone.

        Returns:
            Its path below the workspace.

        Raises:
            ValueError: If ``path`` is not below the workspace, or no name alone where it has to be, or there is too
                much data.
            OSError: If the sandbox cannot write it.
            SandboxError: If the sandbox cannot start.
        """

    @abstractmethod
    async def get_file(self, path: str) -> bytes:
        """Read a file of the workspace, of at most 64 MiB.

        Raises:
            ValueError: If ``path`` is not below the workspace.
            OSError: If the sandbox cannot read it, such as ``FileNotFoundError``, or it is too large.
            SandboxError: If the sandbox cannot start.
        """

    @abstractmethod
    async def list_files(self) -> dict[str, int]:
        """The files of the workspace with their sizes in bytes, at most 10,000, by path.

        Raises:
            SandboxError: If the sandbox cannot start.
        """
