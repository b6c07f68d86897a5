"""The frames of one process in a sandbox, checked."""

from __future__ import annotations

import asyncio
import errno
import os
from collections import deque
from collections.abc import Callable
from typing import Protocol

from pydantic import BaseModel

from codeact_team.core.aio import FairLock, to_the_end
from codeact_team.errors import SandboxLostError
from codeact_team.sandbox.base import KILLED, Cause, Limits, diagnose, limit_sentence
from codeact_team.sandbox.processes import ProcessOutput, ProcessRequest
from codeact_team.sandbox.system.framing import ProtocolError, frame
from codeact_team.session.connection import FrameChannel, SupervisorConnection
from codeact_team.session.protocol import (
    MAX_INPUT_BYTES,
    PROCESS_HEAD,
    ExitedFrame,
    Kind,
    Obstacle,
    ProgressFrame,
    Wait,
)

_CLOSE_TIMEOUT = 30.0
"""Seconds that a sandbox gets to end a process and all that it has started; after that, it ends itself."""
_EXAMINED = 4096
"""Bytes at the end of the output that may name the limit which a process ran into."""
_MOST_UNREAD = 1 << 21
"""No honest supervisor sends more than it was asked for."""


class Refusal(BaseModel):
    """The error of a process that was not started; see ``Kind.STARTED``."""

    errno: int
    message: str
    about: Obstacle


class ProcessTransport(Protocol):
    """The transport between a process and its program: frames, a recorder of frames, or a record that answers."""

    @property
    def args(self) -> list[str]:
        """Its arguments."""
        ...

    @property
    def exit(self) -> ExitedFrame | None:
        """The end of the process, as far as is known."""
        ...

    @property
    def limit(self) -> str | None:
        """The limit of the sandbox that it ran into, in a sentence, if it has failed and that is known."""
        ...

    @property
    def has_left(self) -> bool:
        """Whether it has ended, and something that it has started still runs, as far as is known."""
        ...

    async def read(self, wait: Wait) -> tuple[ProcessOutput, bool]:
        """Its output since the last call, and whether there is no more."""
        ...

    async def write(self, data: bytes) -> None:
        """Send input, and wait until it was taken."""
        ...

    async def send(self, kind: Kind, *payload: bytes) -> None:
        """Send a frame that is not answered."""
        ...

    async def poll(self) -> None:
        """Find out whether it has ended."""
        ...

    async def wait(self) -> None:
        """Wait until it has ended."""
        ...

    async def close(self) -> None:
        """End it with all that it has started, also if this is cancelled meanwhile."""
        ...


class ProcessChannel(FrameChannel):
    """A transport of the frames of a process.

    Args:
        connection: The stream to its supervisor.
        number: The number of the process.
        request: What it was started with.
        limits: The limits of the sandbox.
        forget: Called once nothing more can come of it.

    Attributes:
        args: Its arguments.
        started: Whether it is known to run, or not to.
        refusal: Why it does not.
        exit: How it has ended.
        progress: Its unread output.
        taken: How many pieces of input were taken.
        polled: How many questions whether it has ended were answered.
        closed: Whether nothing is left of it.
        is_over: Whether nothing more can come of it.
        exceeded: The limit for which it was ended, in a sentence.
    """

    def __init__(
        self,
        connection: SupervisorConnection,
        number: int,
        request: ProcessRequest,
        limits: Limits,
        forget: Callable[[ProcessChannel], None],
    ) -> None:
        super().__init__(connection, number)
        self.args: list[str] = request.args
        self.started: bool = False
        self.refusal: Refusal | None = None
        self.exit: ExitedFrame | None = None
        self.progress: deque[ProgressFrame] = deque()
        self.taken: int = 0
        self.polled: int = 0
        self.closed: bool = False
        self.is_over = False
        self.exceeded: str | None = None
        self._request = request
        self._limits = limits
        self._forget = forget
        self._reading = FairLock()
        self._asked = 0
        """The number of requests for output that are not answered yet."""
        self._unread = 0

    def put(self, kind: int, payload: bytes) -> None:
        if kind == Kind.STARTED:
            self.started = True
            self.refusal = Refusal.model_validate_json(payload) if payload else None
        elif kind == Kind.PROGRESS:
            progress = ProgressFrame.unpack(payload)
            self._unread += len(progress.stdout) + len(progress.stderr)
            if self._unread > _MOST_UNREAD or (progress.has_ended and self.exit is None):
                raise ProtocolError("that output was not asked for")
            self.progress.append(progress)
        elif kind == Kind.EXITED:
            self.exit = ExitedFrame.unpack(payload)
        elif kind == Kind.TAKEN:
            self.taken += 1
        elif kind == Kind.POLLED:
            self.polled += 1
        else:
            self.closed = True

    def pop_progress(self) -> tuple[ProcessOutput, bool]:
        one = self.progress.popleft()
        self._unread -= len(one.stdout) + len(one.stderr)
        return ProcessOutput(one.stdout, one.stderr, one.stdout_omitted, one.stderr_omitted), one.has_ended

    @property
    def limit(self) -> str | None:
        return self.limit_behind(ProcessOutput())

    @property
    def has_left(self) -> bool:
        return self.exit is not None and self.exit.leaves and not self.closed

    async def read(self, wait: Wait) -> tuple[ProcessOutput, bool]:
        async with self._reading:
            if not self._asked or wait == Wait.NOT:
                await self._send(self.question(wait))
            # a question from a wait that was cancelled is answered, too
            parts: list[ProcessOutput] = []
            has_ended = False
            while self._asked:
                await self.wait_for(lambda: bool(self.progress) or self.refusal is not None)
                if self.refusal is not None:
                    raise self.failure(self.refusal)
                part, has_ended = self.pop_progress()
                self._asked -= 1
                parts.append(part)
        output = ProcessOutput(
            b"".join(part.stdout for part in parts),
            b"".join(part.stderr for part in parts),
            sum(part.stdout_omitted for part in parts),
            sum(part.stderr_omitted for part in parts),
        )
        return output, has_ended

    async def write(self, data: bytes) -> None:
        """Send input piece by piece, each when the one before was taken."""
        for start in range(0, len(data), MAX_INPUT_BYTES):
            before = self.taken
            await self.send(Kind.INPUT, data[start : start + MAX_INPUT_BYTES])
            await self.wait_for(lambda before=before: self.taken > before)

    def question(self, wait: Wait) -> bytes:
        """The frame that asks for output, which the next :meth:`read` waits for."""
        self._asked += 1
        return self.request(Kind.READ, bytes([wait]))

    async def send(self, kind: Kind, *payload: bytes) -> None:
        await self._send(self.request(kind, *payload))

    async def _send(self, frames: bytes) -> None:
        if self.is_over:
            raise ValueError(f"the process {self.args[0]!r} is closed")
        if not self.connection.alive:
            raise self.lost()
        await self.connection.send_whole(frames)

    def request(self, kind: Kind, *payload: bytes) -> bytes:
        return frame(kind, PROCESS_HEAD.pack(self.number), *payload)

    async def poll(self) -> None:
        if not self.closed:
            before = self.polled
            await self.send(Kind.POLL)
            await self.wait_for(lambda: self.polled > before)

    async def wait(self) -> None:
        await self.wait_for(lambda: self.exit is not None)

    async def wait_for(self, arrived: Callable[[], bool]) -> None:
        """Wait until something has arrived. Raises a ``SandboxLostError``, or a ``ValueError`` if it is closed before."""
        if not await self.wait_until(lambda: arrived() or self.is_over):
            raise self.lost()
        if not arrived():
            raise ValueError("the process was closed meanwhile")

    async def close(self) -> None:
        """End the process with all that it has started. Ends the sandbox if that is not possible."""
        if not self.is_over:
            await to_the_end(self._close())

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                if self.connection.alive:
                    await self.send(Kind.CLOSE)
                    # nothing is left of it either if the sandbox is lost
                    await self.wait_until(lambda: self.closed or self.refusal is not None)
        except TimeoutError:
            await self.connection.end("a process in it did not end")
        finally:
            self._forget(self)

    def lost(self) -> SandboxLostError:
        ending = self.connection.ending
        reason = "it was not started" if ending is None else ending.lost
        return SandboxLostError(f"the sandbox of the process was lost: {reason}")

    def failure(self, refusal: Refusal) -> OSError:
        """The exception that says why it was not started, as ``subprocess`` would raise it."""
        if refusal.errno == errno.EAGAIN and Cause.PROCESSES in self._limits:
            message = f"{refusal.message}: {limit_sentence(Cause.PROCESSES, self._limits[Cause.PROCESSES])}"
            return BlockingIOError(refusal.errno, message)
        name = self._request.cwd if refusal.about is Obstacle.DIRECTORY else self._request.argv[0]
        return OSError(refusal.errno, refusal.message, None if name is None else os.fspath(name))

    def limit_behind(self, output: ProcessOutput) -> str | None:
        """The limit of the sandbox that it ran into, in a sentence, by the end of its output."""
        ended = self.exit
        if ended is None or self.exceeded is not None:
            return self.exceeded
        return diagnose(
            self._limits,
            exit_code=ended.shell_code,
            output=(output.stderr or output.stdout)[-_EXAMINED:].decode(errors="replace"),
            # others may have been killed meanwhile
            oom_kills=ended.oom_kills if ended.shell_code == KILLED else 0,
            fork_failures=ended.fork_failures or 0,
        )
