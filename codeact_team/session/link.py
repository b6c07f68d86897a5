"""The host's end of the stream to a session: frames in both directions, and who waits for which.

Everything that comes from the sandbox is data that may be forged, too large or garbage; that ends the stream, and nothing
else.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from secrets import token_hex
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from codeact_team.core.aio import Turns, to_the_end
from codeact_team.errors import SandboxError, SandboxLostError
from codeact_team.sandbox.base import STARTS_AT_ONCE, Exit, Process, Sandbox
from codeact_team.session import shipping
from codeact_team.session.protocol import (
    BRANCH_HEAD,
    BRANCHES,
    FROM_SUPERVISOR,
    MAX_LISTED_FILES,
    MIB,
    NONE,
    RESULT_HEAD,
    FrameReader,
    Kind,
    ProtocolError,
    of_branch,
)


class Name(BaseModel):
    """A global name that the block has bound, by the code's own account."""

    model_config = ConfigDict(extra="ignore", strict=True)

    name: str = Field(max_length=1000)
    type: str = Field(max_length=1000)
    size: str | None = Field(None, max_length=1000)
    preview: str | None = Field(None, max_length=1000)


class Report(BaseModel):
    """The interpreter's account of a block."""

    model_config = ConfigDict(extra="ignore", strict=True)

    exit_code: int = 0
    names: tuple[Name, ...] = Field(default=(), max_length=100)
    omitted_names: int = Field(default=0, ge=0)
    answer: str | None = None
    answer_is_json: bool = False
    answer_problem: str = Field(default="", max_length=10_000)
    denied: bool = False


@dataclass(slots=True)
class Account:
    """The supervisor's account of a block; see ``Kind.RESULT``.

    Attributes:
        interpreter: The number of the interpreter that was to run it; 0 for a shell.
        present: The number of the present interpreter.
        ran: Whether the code began to run.
        exit_code: ``None`` if the interpreter reports it.
        oom_kills: Since the block began; ``None`` where nobody counts.
        fork_failures: The same.
        processor_seconds: What everything inside has used since the last account; ``None`` if not known.
        loss: Why the interpreter before the present one is gone.
        output: The last of the block's output.
    """

    interpreter: int
    present: int
    ran: bool
    exit_code: int | None
    oom_kills: int | None
    fork_failures: int | None
    processor_seconds: float | None
    loss: str
    output: bytes
    _report: bytes

    @property
    def lost(self) -> str | None:
        """Why the interpreter of the block is gone, if it is."""
        return self.loss if self.interpreter not in (0, self.present) else None

    @classmethod
    def read(cls, payload: bytes) -> Self:
        """The account that ``payload`` is.

        Raises:
            ProtocolError: If it is none.
        """
        try:
            (
                interpreter,
                present,
                ran,
                code,
                kills,
                failures,
                microseconds,
                of_loss,
                of_output,
            ) = RESULT_HEAD.unpack_from(payload)
        except struct.error:
            raise ProtocolError("it is no result") from None
        output = RESULT_HEAD.size + of_loss
        report = output + of_output
        if report > len(payload):
            raise ProtocolError("a result is cut short")
        return cls(
            interpreter,
            present,
            ran,
            None if code == NONE else code,
            None if kills == NONE else kills,
            None if failures == NONE else failures,
            None if microseconds < 0 else microseconds / 1_000_000,
            payload[RESULT_HEAD.size : output].decode(errors="replace") if of_loss else "",
            payload[output:report],
            payload[report:],
        )

    def read_report(self) -> Report | None:
        """The interpreter's account, or ``None`` where there is none that can be read."""
        if not self._report:
            return None
        code, more = self._report[0], self._report[1:]
        if not more:
            return _plain_report(code)
        try:
            report = Report.model_validate_json(more)
        except ValidationError:
            return None
        report.exit_code = code
        return report


@cache
def _plain_report(exit_code: int) -> Report:
    return Report(exit_code=exit_code)


class ArtifactHead(BaseModel):
    """What precedes the bytes of an artifact; see ``Kind.ARTIFACT``."""

    mime_type: str = Field(max_length=100)


class Listing(BaseModel):
    """The files of a workspace, with their sizes in bytes; see ``Kind.DONE``."""

    files: list[tuple[str, int]] = Field(max_length=MAX_LISTED_FILES)


class Failure(BaseModel):
    """Why a file request failed; see ``Kind.FAILED``."""

    error: str
    message: str


class Forked(BaseModel):
    """Whether a session was forked; see ``Kind.FORKED``."""

    refused: str | None = Field(max_length=10_000)


class Greeting(BaseModel):
    """What the supervisor says of itself; see ``Kind.READY``."""

    model_config = ConfigDict(extra="ignore", strict=True)

    interpreter: int = Field(ge=1, lt=2**32)
    unguarded: str | None = None


START_TIMEOUT = 30.0
"""Seconds for the supervisor to start; a loaded machine needs a few."""
GARBLED = "it sent something that could not be understood"
"""Why a stream ends on which something comes that nobody expects."""
_ENDED = "its supervising process ended"
_LAST_WORDS = 2.0
"""Seconds for the end of a supervisor that was killed to show."""
_KILLED = 128 + 9
_MAX_WORDS = 2000
_starts = Turns(STARTS_AT_ONCE)
_AT_ONCE = 4096
"""Bytes that every pipe takes as a whole."""
_MAX_WAITING = 4 * MIB
"""How much may wait for one who does not read on, before nothing more is read for the others either."""
_BRANCH_ENDED = "the branch was ended"


class Line:
    """The frames of a session, or of one branch of it, to and from the supervisor. For one reader at a time.

    Args:
        link: The stream that they go through.
        number: That of the branch; 0 for the session.

    Attributes:
        on_end: Awaited when the stream ends; whoever sends has to be kept from it.
    """

    def __init__(self, link: Link, number: int) -> None:
        self._link = link
        self.number = number
        self._reader = FrameReader(FROM_SUPERVISOR)
        self._frames: deque[tuple[Kind, bytes]] = deque()
        self._size = 0
        self._room: asyncio.Future[None] | None = None
        """Done when there is room again; awaited by whoever reads for all."""
        self._is_over = False
        self.on_end: Callable[[], Awaitable[None]] | None = None

    @property
    def alive(self) -> bool:
        """Whether it was opened, and has not ended as far as is known."""
        return self._link.alive and not self._is_over

    @property
    def ending(self) -> Exit | None:
        """How it ended, once it has."""
        return Exit(_KILLED, lost=_BRANCH_ENDED) if self._is_over else self._link.ending

    async def open(self) -> Greeting:
        """Start the supervisor, and with it an interpreter; what it says of itself.

        Raises:
            SandboxError: If it cannot run in this sandbox, such as where Python is missing.
            SandboxLostError: If the sandbox has ended, or does not get to it in time.
        """
        return await self._link.open()

    @property
    def branches_in(self) -> str:
        """The directory of the workspace in which branches have theirs."""
        return self._link.branches_in

    def branch(self) -> Line:
        """A line for a branch that is to be."""
        return self._link.new_line()

    def close(self) -> None:
        """Take in nothing more. The branch has ended, or has become another."""
        self._is_over = True
        self._link.lines.pop(self.number, None)
        self._drain()

    def close_branches(self) -> None:
        """Take note that all branches end."""
        for line in [*self._link.lines.values()]:
            if line.number:
                line.close()

    async def send(self, data: bytes) -> None:
        """Send frames. A cancellation may cut them in half."""
        await self._link.send(of_branch(self.number, data) if self.number else data)

    async def send_whole(self, data: bytes) -> None:
        """Send frames, and only then heed a cancellation."""
        if len(data) <= _AT_ONCE:
            await self.send(data)
        else:
            await to_the_end(self.send(data))

    async def receive(self) -> tuple[Kind, bytes] | None:
        """The next frame; ``None`` once the stream has ended."""
        while self.alive and not self._frames:
            await self._link.read_for(self)
        if not self.alive:
            return None
        kind, payload = self._frames.popleft()
        self._size -= len(payload)
        if self._size <= _MAX_WAITING:
            self._drain()
        return kind, payload

    async def end(self, reason: str) -> None:
        """End whatever runs in the sandbox, and note why. Idempotent."""
        await self._link.end(reason)

    @property
    def has_frames(self) -> bool:
        """Whether there is something to be received."""
        return bool(self._frames)

    def put(self, kind: Kind, payload: bytes) -> None:
        """Let a frame wait to be received."""
        self._frames.append((kind, payload))
        self._size += len(payload)

    def feed(self, piece: bytes) -> None:
        """Take in a piece of the stream of the branch. Raises a ``ProtocolError``."""
        for kind, payload in self._reader.feed(piece):
            if kind == Kind.BRANCH:
                raise ProtocolError("a branch has no branches")
            self.put(kind, payload)

    async def wait_for_room(self) -> None:
        """Wait until not too much waits here."""
        while self._size > _MAX_WAITING:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def _drain(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.get_loop().call_soon_threadsafe(_wake, room)


def _wake(room: asyncio.Future[None]) -> None:
    if not room.done():
        room.set_result(None)


class Link:
    """A supervisor in a sandbox, and the stream to and from it. Not bound to an event loop.

    Args:
        sandbox: A running sandbox, in which nothing else runs.

    Attributes:
        lines: Whose frames go through it, by number.
        branches_in: The directory of the workspace in which branches have theirs.
        ending: How it ended, once it has.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._process: Process | None = None
        self._reader = FrameReader(FROM_SUPERVISOR)
        self._sending = Turns()
        self._reading = Turns()
        self._next = 0
        self.lines: dict[int, Line] = {}
        self.branches_in = f"{BRANCHES}{token_hex(8)}"
        self.ending: Exit | None = None

    @property
    def alive(self) -> bool:
        """Whether it was opened, and has not ended as far as is known."""
        return self._process is not None and self.ending is None

    def new_line(self) -> Line:
        """The next line; the first is that of the session."""
        line = self.lines[self._next] = Line(self, self._next)
        self._next += 1
        return line

    async def open(self) -> Greeting:
        """See :meth:`Line.open`."""
        async with _starts:
            return await self._open()

    async def _open(self) -> Greeting:
        payload, process = b"", await self._sandbox.spawn_loaded()
        if process is None:
            plain = self._sandbox.python_is_plain
            payload, command = (
                shipping.payload(plain=plain),
                shipping.command(self._sandbox.python, plain=plain),
            )
            process = await self._sandbox.spawn(command, supervises=True)
        self._process = process
        try:
            async with asyncio.timeout(START_TIMEOUT):
                await self.send(payload)
                return await self._greeting(self._process)
        except TimeoutError:
            await to_the_end(self.end(f"it did not start within {START_TIMEOUT:g} s"))
            raise SandboxLostError(f"the interpreter did not start within {START_TIMEOUT:g} s") from None
        except BaseException:
            await to_the_end(self.end(_ENDED))
            raise

    async def send(self, data: bytes) -> None:
        """Send frames. A cancellation may cut them in half."""
        # never into the middle of another one
        assert self._process is not None, "the link has been opened"
        await self._sending.take()
        try:
            await self._process.write(data)
        finally:
            self._sending.pass_on()

    async def read_for(self, line: Line) -> None:
        """Read what comes next, whoever it is for, unless another has read something for ``line`` meanwhile."""
        async with self._reading:
            if line.has_frames or not line.alive or self._process is None:
                return
            for other in [*self.lines.values()]:
                if other is not line:
                    await other.wait_for_room()
            data = await self._process.read()
            problem = self._sort(data) if data else _ENDED
        if problem is not None:
            await self.end(problem)

    def _sort(self, data: bytes) -> str | None:
        """Hand out the frames that are complete with ``data``; what is wrong with them."""
        try:
            for kind, payload in self._reader.feed(data):
                if kind != Kind.BRANCH:
                    self.lines[0].put(kind, payload)
                    continue
                if len(payload) < BRANCH_HEAD.size:
                    return GARBLED
                (number,) = BRANCH_HEAD.unpack_from(payload)
                if not 0 < number < self._next:
                    return GARBLED
                if (line := self.lines.get(number)) is not None:
                    line.feed(payload[BRANCH_HEAD.size :])
        except ProtocolError:
            return GARBLED
        return None

    async def end(self, reason: str) -> None:
        """See :meth:`Line.end`."""
        process = self._process
        if process is None:
            return
        if self.ending is None:
            self.ending = Exit(_KILLED, lost=reason)
            await self._sandbox.kill()
            for line in [*self.lines.values()]:
                if line.on_end is not None:
                    await line.on_end()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS), self._reading:
                    while await process.read():
                        pass
                    ending = await process.wait()
                    self.ending = Exit(ending.code or _KILLED, lost=ending.lost or reason)
            await process.aclose()

    async def _greeting(self, process: Process) -> Greeting:
        said = b""
        while data := await process.read():
            said += data
            try:
                if (received := next(self._reader.feed(data), None)) is not None:
                    kind, payload = received
                    if kind != Kind.READY:
                        break
                    return Greeting.model_validate_json(payload)
            except (ProtocolError, ValidationError):
                # no frame: what the system has to say of a program that cannot be started
                while len(said) < _MAX_WORDS and (data := await process.read()):
                    said += data
                break
        else:
            if (lost := (await process.wait()).lost) is not None:
                raise SandboxLostError(f"the sandbox was lost while its interpreter started: {lost}")
        words = said[:_MAX_WORDS].decode(errors="replace").strip() or "it ended without a word"
        raise SandboxError(f"no interpreter can be started in the sandbox: {words}")
