"""The frames of one process in a sandbox, checked."""

from __future__ import annotations

import errno
import os
import struct
from collections import deque
from collections.abc import Callable

from pydantic import BaseModel

from codeact_team.errors import SandboxLostError
from codeact_team.sandbox.base import KILLED, Cause, Limits, diagnose, limit_sentence
from codeact_team.sandbox.processes import ProcessOutput, ProcessRequest
from codeact_team.sandbox.system.framing import ProtocolError, frame
from codeact_team.session.connection import FrameChannel, SupervisorConnection
from codeact_team.session.protocol import (
    EXIT_HEAD,
    MAX_INPUT_BYTES,
    PROCESS_HEAD,
    PROGRESS_HEAD,
    UNKNOWN,
    Kind,
)

MOST_SIGNALS = 64
_EXAMINED = 4096
"""How many bytes at the end of the output may tell which limit a process ran into."""
_LARGEST_CODE = 255
_MOST_UNREAD = 1 << 21
"""No honest supervisor sends more than it was asked for."""


class Refusal(BaseModel):
    """Why a process was not started; see ``Kind.STARTED``."""

    errno: int
    message: str
    cwd: bool


class ProcessExit:
    """How a process has ended; see ``Kind.EXITED``."""

    def __init__(self, payload: bytes) -> None:
        self.code, self.timed_out, self.leaves, kills, failures = EXIT_HEAD.unpack(payload)
        if not -MOST_SIGNALS <= self.code <= _LARGEST_CODE:
            raise ProtocolError("no process ends like that")
        self.oom_kills = None if kills == UNKNOWN else kills
        self.fork_failures = 0 if failures == UNKNOWN else failures


class ProcessChannel(FrameChannel):
    """What has come of one process.

    Attributes:
        started: Whether it is known to run, or not to.
        refusal: Why it does not.
        exit: How it has ended.
        progress: Its unread output, and whether that is all.
        taken: How many pieces of input were taken.
        polled: How many questions whether it has ended were answered.
        closed: Whether nothing is left of it.
        is_over: Whether nothing more can come of it.
        limit: The limit for which it was ended, in a sentence.
    """

    def __init__(self, connection: SupervisorConnection, number: int) -> None:
        super().__init__(connection, number)
        self.started = False
        self.refusal: Refusal | None = None
        self.exit: ProcessExit | None = None
        self.progress: deque[tuple[ProcessOutput, bool]] = deque()
        self.taken = 0
        self.polled = 0
        self.closed = False
        self.is_over = False
        self.limit: str | None = None
        self._unread = 0

    def put(self, kind: int, payload: bytes) -> None:
        try:
            self._put(kind, payload)
        except struct.error as error:
            raise ProtocolError(f"a frame about a process cannot be read: {error}") from error

    def _put(self, kind: int, payload: bytes) -> None:
        if kind == Kind.STARTED:
            self.started = True
            self.refusal = Refusal.model_validate_json(payload) if payload else None
        elif kind == Kind.PROGRESS:
            has_ended, *omitted, length = PROGRESS_HEAD.unpack_from(payload)
            content = payload[PROGRESS_HEAD.size :]
            self._unread += len(content)
            if self._unread > _MOST_UNREAD or length > len(content) or (has_ended and self.exit is None):
                raise ProtocolError("that output was not asked for")
            self.progress.append((ProcessOutput(content[:length], content[length:], *omitted), has_ended))
        elif kind == Kind.EXITED:
            self.exit = ProcessExit(payload)
        elif kind == Kind.TAKEN:
            self.taken += 1
        elif kind == Kind.POLLED:
            self.polled += 1
        else:
            self.closed = True

    def take(self) -> tuple[ProcessOutput, bool]:
        output, has_ended = self.progress.popleft()
        self._unread -= len(output.stdout) + len(output.stderr)
        return output, has_ended

    async def send(self, kind: Kind, *payload: bytes) -> None:
        if not self.connection.alive:
            raise self.lost()
        await self.connection.send_whole(self.request(kind, *payload))

    def request(self, kind: Kind, *payload: bytes) -> bytes:
        return frame(kind, PROCESS_HEAD.pack(self.number), *payload)

    async def write(self, data: bytes) -> None:
        """Send input piece by piece, each when the one before was taken."""
        for start in range(0, len(data), MAX_INPUT_BYTES):
            before = self.taken
            await self.send(Kind.INPUT, data[start : start + MAX_INPUT_BYTES])
            await self.wait_for(lambda before=before: self.taken > before)

    async def wait_for(self, arrived: Callable[[], bool]) -> None:
        """Wait until something has arrived. Raises a ``SandboxLostError``, or a ``ValueError`` if it is closed before."""
        if not await self.wait_until(lambda: arrived() or self.is_over):
            raise self.lost()
        if not arrived():
            raise ValueError("the process was closed meanwhile")

    def lost(self) -> SandboxLostError:
        ending = self.connection.ending
        reason = "it was not started" if ending is None else ending.lost
        return SandboxLostError(f"the sandbox of the process was lost: {reason}")


def failure_of(refusal: Refusal, request: ProcessRequest, limits: Limits) -> OSError:
    """The exception that says why a process was not started, as ``subprocess`` would raise it."""
    if refusal.errno == errno.EAGAIN and Cause.PROCESSES in limits:
        message = f"{refusal.message}: {limit_sentence(Cause.PROCESSES, limits[Cause.PROCESSES])}"
        return BlockingIOError(refusal.errno, message)
    name = request.cwd if refusal.cwd else request.argv[0]
    return OSError(refusal.errno, refusal.message, None if name is None else os.fspath(name))


def limit_of(channel: ProcessChannel, limits: Limits, output: ProcessOutput) -> str | None:
    """The limit of the sandbox that a process ran into, in a sentence."""
    ended = channel.exit
    if ended is None or channel.limit is not None:
        return channel.limit
    code = ended.code if ended.code >= 0 else 128 - ended.code
    return diagnose(
        limits,
        exit_code=code,
        output=(output.stderr or output.stdout)[-_EXAMINED:].decode(errors="replace"),
        # others may have been killed meanwhile
        oom_kills=ended.oom_kills if code == KILLED else 0,
        fork_failures=ended.fork_failures,
    )
