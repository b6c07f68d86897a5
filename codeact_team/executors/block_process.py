"""The process of a code block: the supervisor's, or, in a sandbox without a Python, one that the sandbox itself starts."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from importlib import resources
from signal import SIGINT
from subprocess import TimeoutExpired
from typing import NamedTuple, Protocol

from codeact_team.core.aio import to_the_end
from codeact_team.errors import SandboxError, SandboxLostError
from codeact_team.executors.running import Call, deadline_after, first
from codeact_team.sandbox.base import KILLED, DirectProcess, Exit, Sandbox, Spawn, time_to_end
from codeact_team.sandbox.processes import CodeFile, ProcessRequest
from codeact_team.session.process_channel import ProcessChannel
from codeact_team.session.processes import ProcessServer
from codeact_team.session.protocol import KILL_TREE, Kind, Obstacle, Wait

logger = logging.getLogger(__name__)

_HERE = resources.files(__name__.rpartition(".")[0])
_RUN_BLOCK = (_HERE / "run_block.sh").read_text()
_RUN_PYTHON = (_HERE / "run_python.py").read_text()
_PRIVATE = "codeact-block"
"""The directory that a block's code is read from."""
_OUTPUT = 16 << 20
"""The most bytes of a block's output that wait for their reader."""
_NOT_FOUND, _NOT_STARTED = 127, 126
_LAST_WORDS_GRACE = 1.0
"""Seconds for the last output of a killed program to arrive."""
INTERRUPT_GRACE = 0.5
"""Seconds between SIGINT, on which Python writes a traceback, and SIGKILL."""
DELETE_TIMEOUT = 5.0
"""Seconds to delete a block's file; processes of earlier blocks may hinder it."""
_STOP_TIMEOUT = 1.0
"""Seconds to wait for a sandbox that does not answer to stop; then it stops in the background."""


class BlockFile(NamedTuple):
    """A block as a file, and what runs it.

    Attributes:
        path: The file, in the workspace.
        code: The code.
        command: The program that runs it, which gets the file as its last argument.
        is_python: Whether that is a Python.
        is_kept: Whether the block has named the file itself, as a part of the work.
    """

    path: str
    code: bytes
    command: Sequence[str]
    is_python: bool
    is_kept: bool


class BlockProcess(Protocol):
    """A process that runs a block. All that it leaves running ends with it."""

    async def read(self) -> bytes:
        """Wait for the next piece of output; ``b""`` once it has ended."""
        ...

    async def wait(self) -> Exit:
        """Return its end, after :meth:`read` has returned ``b""``."""
        ...

    async def interrupt(self) -> None:
        """Send SIGINT."""
        ...

    async def kill(self) -> None:
        """Kill it with all that it has started."""
        ...

    async def aclose(self) -> None:
        """End it with all that it has started. Idempotent."""
        ...


async def follow(process: BlockProcess, call: Call, take: Callable[[bytes], Awaitable[None]]) -> Exit:
    """Pass on the output of a block until it ends, or the call is stopped, which ends it. Returns how it ended."""
    try:
        while chunk := await first(process.read(), call.stop):
            await take(chunk)
        if chunk is None:
            await _terminate(process, take)
        call.block_ended = True
        ending = await process.wait()
    except BaseException:
        await to_the_end(_abandon(process))
        raise
    await process.aclose()
    return ending


async def _abandon(process: BlockProcess) -> None:
    """End it, whatever it writes."""
    try:
        await _terminate(process)
    finally:
        await process.aclose()


async def _terminate(process: BlockProcess, take: Callable[[bytes], Awaitable[None]] | None = None) -> None:
    """Stop it by SIGINT, then by SIGKILL. ``take`` gets the last output."""
    # in any case both: where the program ends by SIGINT, what it forked may not
    for signal, grace in ((process.interrupt, INTERRUPT_GRACE), (process.kill, _LAST_WORDS_GRACE)):
        await signal()
        deadline = deadline_after(grace)
        while chunk := await first(process.read(), None, deadline):
            if take is not None:
                await take(chunk)


class BlockPlace(ABC):
    """Starts the blocks of one sandbox, one after the other."""

    @abstractmethod
    async def start(self, block: BlockFile, call: Call) -> BlockProcess | None:
        """Start a block. Returns ``None`` if the call was stopped before. Raises a ``SandboxError`` if nothing can start."""

    @abstractmethod
    async def delete(self, file: str) -> None:
        """Delete a block's file from inside, as hostile code may have replaced it."""


class _Supervised:
    """A process of the supervisor, whose end may be that it was not started."""

    def __init__(self, channel: ProcessChannel, file: str) -> None:
        self._channel = channel
        self._file = file
        self._has_ended = False
        self._refused: Exit | None = None

    async def read(self) -> bytes:
        try:
            while not self._has_ended:
                output, self._has_ended = await self._channel.read(Wait.FOR_OUTPUT)
                if output.stdout:
                    return output.stdout
        except SandboxLostError:
            # how it was lost is its end
            return b""
        except OSError as error:
            return self._explain(error)
        return b""

    def _explain(self, error: OSError) -> bytes:
        refusal = self._channel.refusal
        is_about_file = refusal is not None and refusal.about is Obstacle.CODE_FILE
        code = 1 if is_about_file else _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_STARTED
        self._has_ended, self._refused = True, Exit(code)
        name = self._file if is_about_file else self._channel.args[0]
        words = error.strerror or str(error)
        return f"{name}: {'not found' if code == _NOT_FOUND else words}\n".encode()

    async def wait(self) -> Exit:
        if self._refused is not None:
            return self._refused
        connection = self._channel.connection
        try:
            async with time_to_end():
                await self._channel.wait()
        except TimeoutError:
            await connection.end("a block in it did not end")
        except SandboxLostError:
            pass
        if (ended := self._channel.exit) is None:
            return connection.ending or Exit(KILLED, lost="it was closed")
        return Exit(
            ended.shell_code,
            oom_kills=ended.oom_kills,
            fork_failures=ended.fork_failures or 0,
            processor_seconds=None if ended.microseconds is None else ended.microseconds / 1_000_000,
        )

    async def interrupt(self) -> None:
        await self._signal(SIGINT)

    async def kill(self) -> None:
        await self._signal(KILL_TREE)

    async def _signal(self, number: int) -> None:
        if self._channel.connection.alive and self._refused is None:
            await self._channel.send(Kind.SIGNAL, bytes([number]))

    async def aclose(self) -> None:
        await self._channel.close()


class SupervisedBlocks(BlockPlace):
    """Blocks as processes of a supervisor, next to other processes.

    Args:
        server: The supervisor.
        private: A directory of the sandbox that nothing outside can write.
    """

    def __init__(self, server: ProcessServer, private: str) -> None:
        self._server = server
        self._private = f"{private}/{_PRIVATE}"

    async def start(self, block: BlockFile, call: Call) -> BlockProcess | None:
        file = CodeFile(block.path, self._private, block.code, block.is_python)
        as_file = ["-c", _RUN_PYTHON] if block.is_python else []
        arguments = [file.to_run, block.path] if block.is_python else [file.to_run]
        argv = [*block.command, *as_file, *arguments]
        request = ProcessRequest(argv, stderr="together", output_limit=_OUTPUT)
        starting = self._server.run_file(request, file)
        channel = await first(starting, call.stop, undo=ProcessChannel.close)
        return None if channel is None else _Supervised(channel, block.path)

    async def delete(self, file: str) -> None:
        request = ProcessRequest(["rm", "-f", "--", file], timeout=DELETE_TIMEOUT)
        try:
            await self._server.run(request)
        except (OSError, TimeoutExpired, SandboxError) as error:
            logger.warning("files of code blocks stay in the sandbox: %s", error)


class DirectBlocks(BlockPlace):
    """Blocks as programs of a sandbox that has no Python for a supervisor: each takes as long as the engine takes.

    Args:
        spawn: Starts a program in the sandbox.
        sandbox: The sandbox.
    """

    def __init__(self, spawn: Spawn, sandbox: Sandbox) -> None:
        self._spawn = spawn
        self._sandbox = sandbox
        self._private = f"{sandbox.private}/{_PRIVATE}"

    async def start(self, block: BlockFile, call: Call) -> BlockProcess | None:
        as_file = _RUN_PYTHON if block.is_python else ""
        argv = ["sh", "-c", _RUN_BLOCK, "run_block", block.path, self._private, as_file, *block.command]
        process: DirectProcess | None = await first(self._spawn(argv), call.stop, undo=_abandon)
        if process is None and call.timed_out:
            await first(self._sandbox.stop(), None, deadline_after(_STOP_TIMEOUT))
            raise SandboxError(f"it did not start the block within {call.seconds} s")
        if process is not None:
            try:
                await first(_give(process, block.code), call.stop)
            except BaseException:
                await to_the_end(_abandon(process))
                raise
        return process

    async def delete(self, file: str) -> None:
        deadline = deadline_after(DELETE_TIMEOUT)
        try:
            process = await first(self._spawn(["rm", "-f", "--", file]), None, deadline, undo=_abandon)
        except SandboxError as error:
            logger.warning("files of code blocks stay in the sandbox: %s", error)
            return
        chunk: bytes | None = None
        while process is not None and (chunk := await first(process.read(), None, deadline)):
            pass
        if chunk is None:
            logger.warning(
                "files of code blocks stay in the sandbox: `rm` has not ended after %g s", DELETE_TIMEOUT
            )
        if process is not None:
            await (_abandon(process) if chunk is None else process.aclose())


async def _give(process: DirectProcess, code: bytes) -> None:
    await process.write(code)
    # only now: half a program must not be run
    await process.close_stdin()
