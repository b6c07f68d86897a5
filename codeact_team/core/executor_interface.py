"""Interfaces of executors beyond AutoGen's ``CodeExecutor``, and of the files of their code.

Agents accept any AutoGen executor. A :class:`StreamingCodeExecutor` also streams its output, names the languages that it
runs, and says more about a result than an exit code.
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
from codeact_team.core.execution import Artifact, ExecutionResult, HostTools, SessionResult
from codeact_team.core.sandbox_description import DataEntry, SandboxDescription
from codeact_team.errors import ForkError, SandboxError, SettingError


class Change(StrEnum):
    """The kind of change that code has made to a file of the workspace."""

    MADE = "made"
    CHANGED = "changed"


@dataclass(frozen=True)
class ChangedFile:
    """A file that code has made or changed.

    Attributes:
        path: Its path in the workspace, as :func:`os.fsdecode` has it; hostile data.
        size: In bytes.
        change: How code has changed it.
    """

    path: str
    size: int
    change: Change


@dataclass(frozen=True)
class Changes:
    """The files that code has made or changed.

    Attributes:
        files: In the order of their paths; ten thousand at most.
        remark: A remark for the person, such as how many more there are.
    """

    files: Sequence[ChangedFile] = ()
    remark: str = ""


@dataclass(frozen=True)
class SavedFile:
    """The outcome of copying a file out of the workspace.

    Attributes:
        path: As :attr:`ChangedFile.path` has it.
        copy: The path of the copy, below the directory for copies; ``None`` without a copy.
        problem: Why it could not be copied.
        is_due: Whether a person can make the copy possible, as where the disk was full.
    """

    path: str
    copy: str | None
    problem: str = ""
    is_due: bool = False


@dataclass(frozen=True, slots=True)
class RecordedFile:
    """A file of the workspace at one time.

    Attributes:
        digest: The digest under which its content is kept; ``None`` if it is not kept, being too long or secret.
        size: In bytes.
        is_executable: Whether its owner may run it.
    """

    digest: str | None
    size: int
    is_executable: bool


@dataclass(frozen=True)
class NewFiles:
    """The files that code has made or changed, and the pictures among them that were read."""

    files: Sequence[ChangedFile] = ()
    pictures: Sequence[Artifact] = ()


class Workspace:
    """The files of an executor's code. By default, it has none.

    What changes files, or looks for changes, waits for a block to end.
    """

    @property
    def path(self) -> Path | None:
        """The directory of this machine; ``None`` where the files are in a container, or the directory is yet to be made."""
        return None

    @property
    def lasts(self) -> bool:
        """Whether the files are still there when the executor has stopped."""
        return False

    @property
    def is_own(self) -> bool:
        """Whether it belongs to this run only, so that it can be made anew when the run is resumed."""
        return True

    async def put(self, path: str, data: bytes | str, *, temporary: bool = False) -> str:
        """Write a file; directories are made, and a link in its place is replaced. For sessions only.

        Args:
            path: Below the workspace.
            data: Its content, at most 64 MiB; text is written as UTF-8.
            temporary: Whether to write it to a directory of the workspace that is removed when the executor stops;
                ``path`` must be a name without directories then.

        Returns:
            Its path below the workspace.

        Raises:
            ValueError: If ``path`` is not below the workspace, or has directories where it must not, or has too
                much data.
            OSError: If the sandbox cannot write it.
            SandboxError: If the sandbox cannot start, or runs no session.
        """
        raise SandboxError(_NO_SESSION)

    async def get(self, path: str) -> bytes:
        """Read a file of at most 64 MiB. For sessions only.

        Raises:
            ValueError: If ``path`` is not below the workspace.
            OSError: If the sandbox cannot read it, such as ``FileNotFoundError``, or it is too large.
            SandboxError: If the sandbox cannot start, or runs no session.
        """
        raise SandboxError(_NO_SESSION)

    async def list(self) -> Mapping[str, int]:
        """The sizes of the files in bytes, by path; 10,000 files at most. For sessions only.

        Raises:
            SandboxError: If the sandbox cannot start, or runs no session.
        """
        raise SandboxError(_NO_SESSION)

    async def changed(self) -> Changes:
        """The files that code has made or changed since the start, or since the last call.

        Raises:
            SandboxError: If that cannot be found out.
        """
        return Changes()

    def changed_before(self, changes: Mapping[str, Change]) -> None:
        """Make the next :meth:`changed` also report the changes before the start, as a run is resumed.

        Args:
            changes: The changes by path. A file that is gone is not reported.
        """

    async def new_files(self, pictures: int) -> NewFiles:
        """The files that code has made or changed since the start, or since the last call; other than :meth:`changed`, for agents.

        Args:
            pictures: How many of the PNG files among them to read, without large ones.

        Raises:
            SandboxError: If it cannot be found out what has changed.
        """
        return NewFiles()

    async def save(
        self, files: Sequence[ChangedFile], directory: str | os.PathLike[str] | int
    ) -> Sequence[SavedFile]:
        """Copy files to a directory of the person's.

        Nothing is overwritten but unchanged earlier copies. Where a name is taken, the copy gets one
        with a number. No link is followed or copied, no hidden file is copied, and no copy is executable.

        Args:
            files: The files, as :meth:`changed` reports them.
            directory: A directory of this machine: its path, or an open descriptor of it.

        Raises:
            OSError: If the directory cannot be opened.
        """
        return [SavedFile(file.path, None, "there is no workspace to copy it from") for file in files]

    async def add(self, name: str, data: bytes) -> str:
        """Add a file. Nothing is overwritten; where the name is taken, it gets one with a number.

        Returns:
            The name of the file.

        Raises:
            OSError: If it cannot be added.
            SandboxError: If no sandbox can take it.
        """
        raise SandboxError("there is no workspace to add it to")

    async def record(self, keep: Callable[[bytes], str | None]) -> Mapping[str, RecordedFile]:
        """Describe all files, by path.

        Args:
            keep: Keeps the content of a file, and returns its digest, or ``None`` if it does not keep it. It may block.
                Called for what has changed since the last call.

        Raises:
            SandboxError: If that cannot be found out.
        """
        return {}

    async def restore(
        self, contents: Mapping[str, Path], executable: Container[str], gone: Sequence[str]
    ) -> None:
        """Write files, whatever is in their place, and remove others.

        Args:
            contents: By path, the file of this machine that has the content.
            executable: The paths of those that their owner may run.
            gone: The paths of those to be removed.

        Raises:
            SandboxError: If that cannot be done.
        """
        raise SandboxError("there is no workspace to restore files in")


_NO_SESSION = (
    "files can be put into and read from the workspace of a session only, and this executor runs none"
)

Emit: TypeAlias = Callable[[str], Awaitable[None]]
"""Takes a piece of output. The output is not read any further before it returns."""


class StreamingCodeExecutor(CodeExecutor):
    """An AutoGen code executor that keeps the code in a sandbox, and whose output can be read while the code runs."""

    @property
    def workspace(self) -> Workspace:
        """The files of the code."""
        return Workspace()

    @property
    def reached(self) -> Sequence[Path]:
        """The files and directories of this machine that the code can read or write, without a temporary workspace."""
        return ()

    @property
    def is_contained(self) -> bool:
        """Whether code can change nothing but its workspace, so that it can safely run again. Known after the start."""
        return False

    @property
    def asks_about_hosts(self) -> bool:
        """Whether a person may be asked which hosts code may reach, by the agent whose code it is."""
        return False

    def recall_request(self, method: str, url: str) -> None:
        """Count a request of code that was allowed before the run was interrupted, for rules that allow a number of them.

        Args:
            method: The method; ``CONNECT`` for a connection.
            url: The URL; for a connection, host and port.
        """

    def recall_answer(self, host: str, *, is_allowed: bool, reason: str) -> None:
        """Take what a person had said of a host before the run was interrupted.

        Args:
            host: The host with its port.
            is_allowed: Whether code may reach it.
            reason: Why.
        """

    @property
    def restarts(self) -> int:
        """The number of times that the state of the blocks was discarded, also if there was none."""
        return 0

    async def finish(self) -> Sequence[str]:
        """Have what the code has left in memory end in order, as a script ends: its files are complete then.

        A living interpreter writes and closes what it has open, and does what waits for its exit. It gets a second for
        that; the next block runs in a fresh one. Between two blocks.

        Returns:
            The first files of the workspace that the code had open for writing, by their relative paths.
        """
        return ()

    @property
    @abstractmethod
    def supported_languages(self) -> Sequence[str]:
        """The labels of the languages this executor runs."""

    @property
    @abstractmethod
    def relaxations(self) -> Sequence[str]:
        """The settings that are weaker than the default, in words for the person who opens the team."""

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
            code_blocks: The blocks.
            cancellation_token: Stops them, and the wait for their turn.
            user: The owner of the code, where several agents share the executor: any object that lives as long as the
                agent. Default: the executor's owner.
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
        """Get what the executor needs for its start, such as packages from an index. Cheap if it is there.

        :meth:`start` does that, too. This shows a failure before a model costs money.

        Raises:
            SandboxError: If that fails.
        """

    async def describe(self) -> SandboxDescription | None:
        """Describe the sandbox, as it says itself. It need not have started. Cheap after the first call.

        Returns:
            The description; ``None`` if nothing is known.

        Raises:
            SandboxError: As :meth:`prepare`.
        """
        return None

    async def add_data(self, path: str) -> Sequence[DataEntry]:
        """Copy a file or a directory of this machine into the workspace, where code may have run already.

        Args:
            path: Its path. The copy has its name.

        Returns:
            What there is to tell a model of it; see :meth:`know_data`.

        Raises:
            SettingError: If it cannot be given, or something else has its name.
            SandboxError: If it cannot be copied, or the sandbox cannot start.
        """
        raise SettingError(f"{type(self).__name__} cannot be given data")

    def know_data(self, entries: Sequence[DataEntry]) -> None:
        """Have :meth:`describe` tell of data that was added."""

    async def release(self, user: object) -> bool:
        """Restart for a user who needs the state of their code no more, unless code of another user has run there.

        Waits until no block of others runs.

        Args:
            user: As given to :meth:`run_code_blocks`.

        Returns:
            Whether the state is gone.

        Raises:
            SandboxError: If the sandbox cannot start again.
        """
        await self.restart()
        return True


class Checkpoint(ABC):
    """Former variables and files of a session; see :meth:`SessionCodeExecutor.checkpoint`."""

    @abstractmethod
    async def aclose(self) -> None:
        """Release it. Idempotent."""


class SessionCodeExecutor(StreamingCodeExecutor):
    """A code executor whose Python blocks share one living interpreter. Its results are :class:`SessionResult`.

    It does one thing at a time: a request for a file waits until the stream of a block was read to its end, or closed.
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
    ) -> SessionResult:
        """Run the blocks as :meth:`StreamingCodeExecutor.run_code_blocks` does.

        Python code may call the functions of ``tools`` on the host. All calls have ended when a block has. If a restart, a
        time-out or the like has lost the variables of a user, the output of their next block says so, and ``state_lost`` is
        set.

        Raises:
            SettingError: If code of a user with other :attr:`~codeact_team.core.executor_interface.HostTools.rights` has run in the interpreter.
            SandboxError: If no code can run here at all (no engine, no image, no confinement).
        """

    def execute_code_blocks_stream(
        self,
        code_blocks: list[CodeBlock],
        cancellation_token: CancellationToken,
        *,
        user: object | None = None,
        tools: HostTools | None = None,
    ) -> AsyncGenerator[str | SessionResult, None]:
        """Run the blocks as :meth:`run_code_blocks` does.

        Yields:
            Chunks of output as they come, then the :class:`SessionResult`.
        """
        return streamed(
            lambda emit: self.run_code_blocks(
                code_blocks, cancellation_token, user=user, tools=tools, emit=emit
            )
        )

    async def execute_code_blocks(
        self, code_blocks: list[CodeBlock], cancellation_token: CancellationToken
    ) -> SessionResult:
        return await self.run_code_blocks(code_blocks, cancellation_token)

    async def fork(self, count: int = 1) -> Sequence[SessionCodeExecutor]:
        """Make forks: executors that begin with the present variables of this one, and run side by side with it.

        A fork has a copy of the workspace, where relative paths lead; by an absolute path it reaches the workspace
        itself. All forks share the limits of this sandbox. Each has its own random numbers. A fork ends when it is
        stopped, or when this executor stops.

        Args:
            count: How many: 1 to 63.

        Raises:
            SettingError: If ``count`` is no such number.
            ForkError: If code has left something open or running that cannot be copied; the text says what.
            SandboxError: If the sandbox cannot start.
        """
        raise ForkError(f"{type(self).__name__} has no forks")

    async def promote(self, fork: SessionCodeExecutor, *, user: object | None = None) -> None:
        """Replace the variables and files of this executor by the variables and files of a fork, which ends.

        Args:
            fork: One that :meth:`fork` has returned.
            user: The caller. The next output of other users says that their variables were replaced.

        Raises:
            SettingError: If it is no fork of this executor.
            SandboxError: If it has ended.
        """
        raise ForkError(f"{type(self).__name__} has no forks")

    async def checkpoint(self) -> Checkpoint:
        """Keep the present variables and files for :meth:`rollback`. Takes as much memory as code changes from now on.

        Raises:
            ForkError: See :meth:`fork`.
            SandboxError: If the sandbox cannot start.
        """
        raise ForkError(f"{type(self).__name__} has no checkpoints")

    async def rollback(self, to: Checkpoint, *, user: object | None = None) -> None:
        """Set variables and files back to a checkpoint, which stays. The files get their old paths.

        The effects of tools, and changes of files outside the workspace, are not undone.

        Args:
            to: A checkpoint that :meth:`checkpoint` has returned.
            user: See :meth:`promote`.

        Raises:
            SettingError: If it is no checkpoint of this executor.
            SandboxError: If it is gone, as with the sandbox.
        """
        raise ForkError(f"{type(self).__name__} has no checkpoints")

    @abstractmethod
    def add_setup(self, code: str) -> None:
        """Run Python ``code`` in the interpreter before the next block, and in each later interpreter.

        The same code is added once. If it fails, the next :meth:`run_code_blocks` raises a ``SettingError``.
        """
