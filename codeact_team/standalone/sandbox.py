"""A sandbox that is open: Python code, processes, files, and copies of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeAlias, TypeVar

from autogen_core import CancellationToken
from autogen_core.code_executor import CodeBlock
from typing_extensions import Unpack

from codeact_team.agents.block_calls import AgentBlock
from codeact_team.core.aio import is_being_cancelled, to_the_end
from codeact_team.core.component_effects import CodeEffect
from codeact_team.core.effects import perform
from codeact_team.core.execution import HostTools, SessionResult
from codeact_team.core.executor_interface import Checkpoint
from codeact_team.core.showing import in_few_words
from codeact_team.errors import RecordedError, SandboxError, SettingError
from codeact_team.executors.session import InterpreterCodeExecutor
from codeact_team.sandbox.processes import ProcessOptions, ProcessResult, StreamName, TerminalSize
from codeact_team.session.processes import SandboxProcess
from codeact_team.standalone.callbacks import as_async_iterable, as_coroutine
from codeact_team.standalone.effects import (
    FileGet,
    FileList,
    FilePut,
    SandboxCheckpoint,
    SandboxFork,
    SandboxRollback,
)
from codeact_team.standalone.files import MAX_BYTES, read_file, too_large, write_file
from codeact_team.standalone.tools import OfferedTools, Tools

if TYPE_CHECKING:
    from codeact_team.standalone.opening import Within

P = ParamSpec("P")
T = TypeVar("T")

CLOSED = "the sandbox is closed"

Input: TypeAlias = bytes | AsyncIterable[bytes] | Iterable[bytes]
"""The stdin of a process; an iterable, such as a file that is open for reading, is read in a thread."""
OnOutput: TypeAlias = Callable[[StreamName, bytes], Awaitable[None] | None]
"""Takes a piece of output and the name of its stream. A function that is no coroutine is called in a thread."""
OnText: TypeAlias = Callable[[str], Awaitable[None] | None]
"""Takes a piece of output. A function that is no coroutine is called in a thread."""


class AsyncSandbox:
    """An open sandbox, as ``async with open_sandbox(...)`` gives it. Its methods may be called side by side.

    Every method raises a :class:`SandboxError` if the sandbox is closed, or cannot start again after it was lost.

    Attributes:
        workspace_path: The absolute path of the workspace, as the sandbox sees it.
    """

    def __init__(
        self, executor: InterpreterCodeExecutor, within: Within | None = None, name: str = ""
    ) -> None:
        self.workspace_path: str = executor.workspace_path
        self._executor = executor
        self._within = within
        """Entered for what is done with it, where that is recorded."""
        self._name = name
        """Of a fork, the numbers of all forks on the way to it."""
        self._forked = 0
        self._tools = OfferedTools()
        self._calls: set[asyncio.Task[Any]] = set()
        self._forks: list[AsyncSandbox] = []
        self._is_closed = False

    def __repr__(self) -> str:
        return in_few_words(self, {"executor": self._executor})

    @staticmethod
    def _while_open(
        method: Callable[Concatenate[AsyncSandbox, P], Coroutine[Any, Any, T]],
    ) -> Callable[Concatenate[AsyncSandbox, P], Coroutine[Any, Any, T]]:
        """The end of the sandbox breaks a call off. A call raises a ``SandboxError`` then, and after the end."""

        @wraps(method)
        async def call(self: AsyncSandbox, *args: P.args, **kwargs: P.kwargs) -> T:
            return await self._until_closed(method(self, *args, **kwargs))

        return call

    @_while_open
    async def run_python(
        self,
        code: str,
        *,
        tools: Tools | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - an end in time is a result, and variables live on
        on_output: OnText | None = None,
    ) -> SessionResult:
        """Run Python code in the living interpreter, whose variables live on. Calls queue.

        Code that fails, or whose time is over, is a result, too.

        Args:
            code: The code. The value of its last expression is part of the output, and ``await`` works at its top level.
            tools: Functions of this program that the code may call, as ``tools.name(...)``: a list of functions, coroutine
                functions and AutoGen tools, a mapping of names to functions, or an object of
                :class:`codeact_team.core.execution.HostTools`. A function that is no coroutine is called in a thread.
            timeout: Seconds that the code may take. Default: the setting ``timeout``.
            on_output: Called with each piece of the output as it comes. Its exception stops the code. A function that is no
                coroutine is called in a thread.

        Returns:
            The output, the way the code ended, and the names and pictures that it has made.

        Raises:
            SettingError: If ``timeout`` or ``tools`` cannot be used, or the setting ``setup`` fails.
        """
        if self._within is not None and isinstance(tools, HostTools):
            raise SettingError(
                f"tools: calls of a {type(tools).__name__} bypass the journal of the run; give functions, or tools of AutoGen"
            )
        blocks = [CodeBlock(code=code, language="python")]
        async with self._tools.used(tools) as host_tools:
            run = partial(
                self._executor.run_code_blocks,
                cancellation_token=CancellationToken(),
                tools=host_tools,
                emit=None if on_output is None else as_coroutine(on_output),
                seconds=timeout,
            )
            result = await self._perform(AgentBlock(self._executor, blocks, run), partial(run, blocks))
        assert isinstance(result, SessionResult), "it comes from an interpreter"
        return result

    @_while_open
    async def run(
        self,
        argv: Sequence[str],
        *,
        input: Input | None = None,
        on_output: OnOutput | None = None,
        check: bool = False,
        **options: Unpack[ProcessOptions],
    ) -> ProcessResult:
        """Run a program to its end, at the same time as the interpreter and others. Processes that it leaves end with it.

        Args:
            argv: The program and its arguments. No shell reads them: for a shell, ``["sh", "-c", code]``.
            input: Its stdin: bytes, or an iterable of bytes, asynchronous or not, such as a file that is open for
                reading. Default: nothing.
            on_output: Called with the name of the stream, ``"stdout"`` or ``"stderr"``, and each piece of output as it
                comes. A function that is no coroutine is called in a thread.
            check: Whether an exit code other than 0 is an error.
            options: See :class:`~codeact_team.sandbox.processes.ProcessOptions`.

        Returns:
            Its exit code and its output.

        Raises:
            subprocess.TimeoutExpired: If it does not end in time; it has the output so far.
            subprocess.CalledProcessError: If it fails, and ``check`` is set.
            FileNotFoundError: If the program or the directory does not exist.
            OSError: If it cannot be started for another reason, such as a ``PermissionError``.
            LookupError: If the sandbox has no such user.
            ValueError: If an argument cannot be used, such as an empty ``argv``.
        """
        if isinstance(input, Iterable) and not isinstance(input, str | bytes):
            input = as_async_iterable(input)
        return await self._executor.processes.run(
            argv,
            input=input,
            on_output=None if on_output is None else as_coroutine(on_output),
            check=check,
            **options,
        )

    @_while_open
    async def start(
        self,
        argv: Sequence[str],
        *,
        terminal: TerminalSize | None = None,
        **options: Unpack[ProcessOptions],
    ) -> SandboxProcess:
        """Start a program that goes its own way until its handle is closed, or the sandbox.

        Args:
            argv: As of :meth:`run`.
            terminal: The size of a terminal that is its stdin, stdout and stderr. Default: no terminal.
            options: As of :meth:`run`.

        Returns:
            Its handle, a context manager that ends it with all that it has started.

        Raises:
            OSError: As of :meth:`run`.
            ValueError: As of :meth:`run`.
        """
        return await self._executor.processes.start(argv, terminal=terminal, **options)

    @_while_open
    async def put(self, path: str | os.PathLike[str], data: bytes | str) -> None:
        """Write a file. Missing directories are made.

        Args:
            path: Relative to the workspace, or absolute, as the sandbox sees it. A relative one waits for Python code that
                runs, and a link in its place is replaced. An absolute one is written in its place, with the rights of the
                sandbox's code.
            data: Its content, at most 64 MiB; text is written as UTF-8.

        Raises:
            OSError: If the sandbox cannot write it, such as a ``PermissionError``.
            ValueError: If a relative path leads out of the workspace, or the data is too large for it.
        """
        path, content = os.fspath(path), data.encode() if isinstance(data, str) else data

        async def write() -> None:
            if path.startswith("/"):
                await write_file(self._executor, path, content)
            else:
                await self._executor.workspace.put(path, content)

        await self._perform(FilePut(self._executor, path, content), write)

    @_while_open
    async def get(self, path: str | os.PathLike[str], *, limit: int = MAX_BYTES) -> bytes:
        """Read a file.

        Args:
            path: Relative to the workspace, or absolute, as the sandbox sees it. A relative one waits for Python code that
                runs.
            limit: The most bytes that it may have, up to 64 MiB.

        Raises:
            OSError: If the sandbox cannot read it, such as a ``FileNotFoundError``, or it is larger.
            ValueError: If a relative path leads out of the workspace.
        """
        path = os.fspath(path)

        async def read() -> bytes:
            if path.startswith("/"):
                return await read_file(self._executor, path, limit)
            data = await self._executor.workspace.get(path)
            if len(data) > limit:
                raise too_large(path, limit)
            return data

        return await self._perform(FileGet(self._executor, path, limit), read)

    @_while_open
    async def list(self) -> Mapping[str, int]:
        """The sizes of the files of the workspace in bytes, by path; 10,000 files at most. Waits for Python code that runs."""
        return await self._perform(FileList(self._executor), self._executor.workspace.list)

    @_while_open
    async def fork(self, count: int = 1) -> Sequence[AsyncSandbox]:
        """Make copies of the sandbox, which begin with its variables, and run side by side with it.

        A fork has a copy of the workspace, where relative paths lead. By an absolute path it reaches the workspace itself.
        All forks share the limits of this sandbox.

        Args:
            count: How many: 1 to 63.

        Returns:
            The forks. Each is a context manager that closes it; they are closed with this sandbox at the latest.

        Raises:
            SettingError: If ``count`` is no such number.
            ForkError: If the code has left something open or running that cannot be copied; the text says what.
        """
        made: list[AsyncSandbox] = []

        async def fork() -> None:
            for executor in await self._executor.fork(count):
                self._forked += 1
                name = f"{self._name}.{self._forked}" if self._name else f"fork {self._forked}"
                made.append(AsyncSandbox(executor, self._within, name))

        await self._perform(SandboxFork(self._executor, count=count), fork)
        forks = made
        self._forks = [*(fork for fork in self._forks if not fork._is_closed), *forks]
        return forks

    @_while_open
    async def checkpoint(self) -> Checkpoint:
        """Keep the present variables and files for :meth:`rollback`. Takes as much memory as code changes from now on.

        Raises:
            ForkError: As of :meth:`fork`.
        """
        made: list[Checkpoint] = []

        async def keep() -> None:
            made.append(await self._executor.checkpoint())

        await self._perform(SandboxCheckpoint(self._executor), keep)
        return made[0]

    @_while_open
    async def rollback(self, point: Checkpoint) -> None:
        """Set variables and files back to a checkpoint, which stays.

        What tools have done, and changes of files outside the workspace, are not undone.

        Args:
            point: A checkpoint that :meth:`checkpoint` has returned.

        Raises:
            SettingError: If it is no checkpoint of this sandbox.
        """
        await self._perform(SandboxRollback(self._executor), partial(self._executor.rollback, point))

    async def aclose(self) -> None:
        """End it, with all that runs in it and with its forks. Idempotent."""
        self._is_closed = True
        await to_the_end(self._end())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def _perform(self, effect: CodeEffect[T], do: Callable[[], Awaitable[T]]) -> T:
        if self._within is None:
            return await do()
        effect.source, effect.is_apart, effect.is_done_again = self._name, bool(self._name), True
        try:
            return await perform(effect, do)
        except RecordedError as error:
            raise SandboxError(str(error)) from error

    async def _until_closed(self, work: Coroutine[Any, Any, T]) -> T:
        if self._is_closed:
            work.close()
            raise SandboxError(CLOSED)
        with nullcontext() if self._within is None else self._within():
            task = asyncio.ensure_future(work)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        try:
            return await task
        except asyncio.CancelledError:
            if self._is_closed and not is_being_cancelled():
                raise SandboxError(CLOSED) from None
            raise

    async def _end(self) -> None:
        # a call that came later would start the sandbox again
        if calls := [*self._calls]:
            for call in calls:
                call.cancel()
            await asyncio.wait(calls)
        forks, self._forks = self._forks, []
        for fork in forks:
            await fork.aclose()
        try:
            await self._executor.stop()
        finally:
            await self._tools.stop()
