"""The host's end of the stream to a session: what the frames contain, and who waits for which.

Whatever comes from the sandbox may be forged, too large or garbage. Such data ends the stream and does no other harm.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from secrets import token_hex
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from codeact_team.core.aio import FairLock, accompanied, to_the_end
from codeact_team.core.execution import Artifact, BoundName
from codeact_team.errors import SandboxError, SandboxLostError
from codeact_team.sandbox.base import (
    STARTS_AT_ONCE,
    Exit,
    NoPythonError,
    Process,
    Sandbox,
    WayOut,
)
from codeact_team.sandbox.system.framing import FrameReader, ProtocolError, frame
from codeact_team.session import shipping
from codeact_team.session.protocol import (
    FORK_HEAD,
    FORKS_PREFIX,
    FROM_SUPERVISOR,
    MAX_FILE_NAME,
    MAX_FORMS,
    MAX_LEFT_OPEN,
    MAX_LISTED_FILES,
    MAX_MIME_TYPE,
    MIB,
    OF_PROCESSES,
    PROCESS_HEAD,
    Kind,
    of_fork,
)

_MAX_WORDS = 1000
"""Characters of a name, its type, its size and its preview."""


def _bounded(name: BoundName) -> BoundName:
    if any(len(part or "") > _MAX_WORDS for part in (name.name, name.type, name.size, name.preview)):
        raise ValueError("a name, or what is said of it, is too long")
    return name


class Report(BaseModel):
    """The interpreter's account of a block; see ``Kind.REPORT``."""

    model_config = ConfigDict(extra="ignore", strict=True)

    exit_code: int = 0
    names: tuple[Annotated[BoundName, AfterValidator(_bounded)], ...] = Field(default=(), max_length=100)
    omitted_names: int = Field(default=0, ge=0)
    answer: str | None = None
    answer_is_json: bool = False
    answer_problem: str = Field(default="", max_length=10_000)
    denied: bool = False
    left_open: tuple[str, ...] = Field(default=(), max_length=MAX_LEFT_OPEN)


def read_report(payload: bytes) -> Report | None:
    """The interpreter's account in a ``RESULT``, or ``None`` if there is none that can be read."""
    if not payload:
        return None
    code, more = payload[0], payload[1:]
    if not more:
        return Report(exit_code=code)
    try:
        report = Report.model_validate_json(more)
    except ValidationError:
        return None
    report.exit_code = code
    return report


_MimeType = Annotated[str, Field(max_length=MAX_MIME_TYPE)]


class _ArtifactHead(BaseModel):
    """The line before the bytes of an artifact; see ``Kind.ARTIFACT``."""

    mime_type: _MimeType
    file: str | None = Field(default=None, max_length=MAX_FILE_NAME)
    others: list[tuple[_MimeType, Annotated[int, Field(ge=0)]]] = Field(default=[], max_length=MAX_FORMS - 1)


def read_artifact(payload: bytes) -> Artifact:
    """Read an ``ARTIFACT``. Raises a ``ProtocolError`` or a ``ValidationError``."""
    line, _, content = payload.partition(b"\n")
    head = _ArtifactHead.model_validate_json(line)
    end = len(content) - sum(size for _, size in head.others)
    if end < 0:
        raise ProtocolError("an artifact is cut short")
    data, others = content[:end], dict[str, bytes]()
    for kind, size in head.others:
        others[kind] = content[end : end + size]
        end += size
    # each type once
    others.pop(head.mime_type, None)
    return Artifact(head.mime_type, data, head.file, others)


class FileListing(BaseModel):
    """The files of a workspace, with their sizes in bytes; see ``Kind.DONE``."""

    files: list[tuple[str, int]] = Field(max_length=MAX_LISTED_FILES)


class Failure(BaseModel):
    """The error of a file request; see ``Kind.FAILED``."""

    error: str
    message: str


class Forked(BaseModel):
    """Whether a session was forked; see ``Kind.FORKED``."""

    refused: str | None = Field(max_length=10_000)


class _Forwarding(BaseModel):
    """Whether connections of code are taken; see ``Kind.FORWARDING``."""

    problem: str | None = Field(max_length=10_000)


class Greeting(BaseModel):
    """The first frame of a supervisor; see ``Kind.READY``."""

    model_config = ConfigDict(extra="ignore", strict=True)

    interpreter: int = Field(ge=1, lt=2**32)
    unguarded: str | None = None


_START_TIMEOUT = 30.0
"""Seconds for the supervisor to start; a loaded machine needs a few."""
GARBLED = "it sent something that could not be understood"
"""The reason for the end of a stream after an unexpected frame."""
_ENDED = "its supervising process ended"
_EXIT_TIMEOUT = 2.0
"""Seconds to wait for the exit code of a supervisor that was killed."""
_KILLED = 128 + 9
_MAX_ERROR = 2000
_AT_ONCE = 4096
"""Bytes that every pipe takes as a whole."""
_MAX_WAITING = 4 * MIB
"""The most bytes that wait in one channel. If there are more, nothing is read for the other channels either."""
_FORK_ENDED = "the fork was ended"
_starts = FairLock(STARTS_AT_ONCE)


class FrameChannel:
    """A part of the frames to and from a supervisor, for any number of readers, which wait for different ones."""

    def __init__(self, connection: SupervisorConnection, number: int) -> None:
        self.connection = connection
        self.number = number
        self._arrivals: set[asyncio.Future[None]] = set()

    async def wait_until(self, arrived: Callable[[], bool]) -> bool:
        """Wait until something has arrived; returns ``False`` if the stream ends before.

        Args:
            arrived: Whether it has. Checked whenever a frame comes.
        """
        while not arrived():
            if not self.connection.alive:
                return False
            await self.connection.read_for(self, arrived)
        return True

    async def arrival(self, turns: FairLock) -> bool:
        """Wait for the turn, or for the next frame, whichever comes first. Returns whether the turn came."""
        arrival: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._arrivals.add(arrival)
        try:
            return await turns.acquire(arrival)
        finally:
            self._arrivals.discard(arrival)

    def wake(self) -> None:
        """Wake all readers, to look at the new frame."""
        for arrival in [*self._arrivals]:
            arrival.get_loop().call_soon_threadsafe(_wake, arrival)

    def put(self, kind: int, payload: bytes) -> None:
        """Take a frame. Raises a ``ProtocolError`` or ``ValidationError`` if it is none that may come."""
        raise NotImplementedError


class SessionChannel(FrameChannel):
    """The frames of one session, the main one or a fork.

    Attributes:
        ending: The end of the session, if it is known to have ended.
        on_end: Awaited when the stream ends, to keep senders from sending.
    """

    def __init__(self, connection: SupervisorConnection, number: int) -> None:
        super().__init__(connection, number)
        self._reader = FrameReader(FROM_SUPERVISOR)
        self._frames: deque[tuple[int, bytes]] = deque()
        self._size = 0
        self._room: asyncio.Future[None] | None = None
        """Done when there is room again; awaited by the task that reads for all."""
        self.ending: Exit | None = None
        self.on_end: Callable[[], Awaitable[None]] | None = None

    def close(self) -> None:
        """Receive nothing more: the fork has ended, or has replaced another session."""
        self.ending = Exit(_KILLED, lost=_FORK_ENDED)
        self.connection.channels.pop(self.number, None)
        self._make_room()
        self.wake()

    async def send(self, data: bytes) -> None:
        """Send frames. A cancellation may cut them in half."""
        await self.connection.send(of_fork(self.number, data) if self.number else data)

    async def send_whole(self, data: bytes) -> None:
        """Send frames; a cancellation takes effect only afterwards."""
        await self.connection.send_whole(of_fork(self.number, data) if self.number else data)

    async def receive(self) -> tuple[int, bytes] | None:
        """Wait for the next frame; ``None`` once the stream has ended."""
        while self.ending is None:
            if self._frames:
                break
            await self.connection.read_for(self, self._has_news)
        else:
            return None
        kind, payload = self._frames.popleft()
        self._size -= len(payload)
        if self._room is not None and self._size <= _MAX_WAITING:
            self._make_room()
        return kind, payload

    def _has_news(self) -> bool:
        return bool(self._frames) or self.ending is not None

    def put(self, kind: int, payload: bytes) -> None:
        self._frames.append((kind, payload))
        self._size += len(payload)

    def feed(self, piece: bytes) -> None:
        """Queue the frames in a piece of a fork's stream. Raises a ``ProtocolError``."""
        for kind, payload in self._reader.feed(piece):
            if kind == Kind.FORK_DATA:
                raise ProtocolError("a fork has no forks")
            self.put(kind, payload)

    async def wait_for_room(self) -> None:
        """Wait until not too many bytes wait to be received."""
        while self._size > _MAX_WAITING:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def _make_room(self) -> None:
        room, self._room = self._room, None
        if room is not None and not room.done():
            room.get_loop().call_soon_threadsafe(_wake, room)


def _wake(room: asyncio.Future[None]) -> None:
    if not room.done():
        room.set_result(None)


class SupervisorConnection:
    """A supervisor in a sandbox, and the stream to and from it. Not bound to an event loop.

    Args:
        sandbox: The sandbox.
        only_processes: Whether it runs no blocks, and has no interpreter.
        user: The user as whom it runs, together with other programs; ``None`` for the code's user, who runs no other program.

    Attributes:
        channels: The sessions whose frames the stream carries, by number; number 0 is the main session.
        processes: The processes whose frames it carries, by number.
        next_process: The number of the next one.
        forks_in: The directory of the workspace that contains the directories of forks.
        alive: Whether the stream was opened, and has not ended as far as is known.
        ending: The end of the supervisor, if it has ended.
        unguarded: How code could tamper with the supervisor, if it could.
    """

    def __init__(self, sandbox: Sandbox, *, only_processes: bool = False, user: str | None = None) -> None:
        self._sandbox = sandbox
        self._only_processes = only_processes
        self._user = user
        self._process: Process | None = None
        self._reader = FrameReader(FROM_SUPERVISOR)
        self._sending = FairLock()
        self._reading = FairLock()
        self._next = 0
        self.processes: dict[int, FrameChannel] = {}
        self.next_process = 0
        self.channels: dict[int, SessionChannel] = {}
        self.forks_in: str = f"{FORKS_PREFIX}{token_hex(8)}"
        self.alive: bool = False
        self.ending: Exit | None = None
        self.unguarded: str | None = None

    def new_channel(self) -> SessionChannel:
        """Make the channel of another session. The first one is for the main session."""
        channel = self.channels[self._next] = SessionChannel(self, self._next)
        self._next += 1
        return channel

    def close_forks(self) -> None:
        for channel in [*self.channels.values()]:
            if channel.number:
                channel.close()

    async def open(self) -> Greeting:
        """Start the supervisor, and with it an interpreter.

        Returns its first frame. Raises a :class:`NoPythonError` if it cannot run in this sandbox; a ``SandboxLostError`` if the sandbox has ended, or the supervisor does not start in time.
        """
        async with _starts:
            return await self._open()

    async def _open(self) -> Greeting:
        payload, self._process = await self._spawn()
        self.alive = True
        try:
            async with asyncio.timeout(_START_TIMEOUT):
                # a program that cannot start says so, and reads nothing
                greeting = await accompanied(self.send(payload), self._greeting(self._process))
                self.unguarded = greeting.unguarded
                # before any code runs
                if self._user is None and (way_out := self._sandbox.way_out) is not None:
                    await self._begin_egress(self._process, way_out)
                return greeting
        except TimeoutError:
            await to_the_end(self.end(f"it did not start within {_START_TIMEOUT:g} s"))
            raise SandboxLostError(f"the interpreter did not start within {_START_TIMEOUT:g} s") from None
        except BaseException:
            await to_the_end(self.end(_ENDED))
            raise

    async def _spawn(self) -> tuple[bytes, Process]:
        """Start the supervisor. Returns what to send to it first, and its process."""
        sandbox = self._sandbox
        if self._only_processes:
            first = shipping.payload(only_processes=True)
            if self._user is None:
                return first, await sandbox.supervise()
            return first, await sandbox.supervise_as(self._user)
        if (process := await sandbox.supervise_loaded()) is not None:
            return b"", process
        plain = sandbox.python_is_plain
        return shipping.payload(plain=plain), await sandbox.supervise(plain=plain)

    async def _begin_egress(self, process: Process, way_out: WayOut) -> None:
        """Have the supervisor take connections of code. Raises a ``SandboxError`` if it cannot."""
        order = {
            "token": way_out.token,
            "socket": f"{self._sandbox.way_out_place}/socket",
            "addresses": [*way_out.addresses],
        }
        await self.send(frame(Kind.EGRESS, json.dumps(order).encode()))
        answer: tuple[int, bytes] | None = None
        try:
            while answer is None and (data := await process.read()):
                answer = next(self._reader.feed(data), None)
            kind, payload = answer or (None, b"")
            problem = _Forwarding.model_validate_json(payload).problem if kind == Kind.FORWARDING else _ENDED
        except (ProtocolError, ValidationError):
            problem = GARBLED
        if problem is not None:
            raise SandboxError(f"the sandbox has no way out for the connections of its code: {problem}")

    async def send(self, data: bytes) -> None:
        """Send frames, never in the middle of others. A cancellation may cut them in half."""
        assert self._process is not None, "it was opened"
        await self._sending.acquire()
        try:
            await self._process.write(data)
        finally:
            self._sending.pass_on()

    async def send_whole(self, data: bytes) -> None:
        """Send frames; a cancellation takes effect before or after, so that they are whole."""
        if len(data) <= _AT_ONCE:
            await self.send(data)
        else:
            await to_the_end(self.send(data))

    async def read_for(self, channel: FrameChannel, arrived: Callable[[], bool]) -> None:
        """Read what comes next, for any channel, unless another task does, and something has come for ``channel`` meanwhile."""
        if self._reading.taken:
            if not await channel.arrival(self._reading):
                return
        else:
            await self._reading.acquire()
        try:
            if arrived() or self._process is None or not self.alive:
                return
            for other in [*self.channels.values()]:
                if other is not channel:
                    await other.wait_for_room()
            data = await self._process.read()
            problem = self._distribute(data) if data else _ENDED
        finally:
            self._reading.pass_on()
        if problem is not None:
            await self.end(problem)

    def _distribute(self, data: bytes) -> str | None:
        """Queue the frames that are complete with ``data`` in their channels. Returns what is wrong with them, if anything."""
        woken: set[FrameChannel] = set()
        try:
            for kind, payload in self._reader.feed(data):
                if kind in OF_PROCESSES:
                    channel, content = self._process_of(payload), payload[PROCESS_HEAD.size :]
                    if channel is not None:
                        channel.put(kind, content)
                elif kind == Kind.FORK_DATA:
                    channel = self._fork_of(payload)
                    if channel is not None:
                        channel.feed(payload[FORK_HEAD.size :])
                else:
                    channel = self.channels[0]
                    channel.put(kind, payload)
                if channel is not None:
                    woken.add(channel)
        except (ProtocolError, ValidationError):
            return GARBLED
        finally:
            for channel in woken:
                channel.wake()
        return None

    def _fork_of(self, payload: bytes) -> SessionChannel | None:
        """The channel of a fork to which a frame belongs; ``None`` if it has ended. Raises a ``ProtocolError``."""
        if len(payload) < FORK_HEAD.size:
            raise ProtocolError("fork data without the number of the fork")
        (number,) = FORK_HEAD.unpack_from(payload)
        if not 0 < number < self._next:
            raise ProtocolError("there was never such a fork")
        return self.channels.get(number)

    def _process_of(self, payload: bytes) -> FrameChannel | None:
        """The channel of a process to which a frame belongs; ``None`` if it was closed. Raises a ``ProtocolError``."""
        if len(payload) < PROCESS_HEAD.size:
            raise ProtocolError("a frame without the number of its process")
        (number,) = PROCESS_HEAD.unpack_from(payload)
        if not number < self.next_process:
            raise ProtocolError("there was never such a process")
        return self.processes.get(number)

    async def end(self, reason: str) -> None:
        """End everything that runs in the sandbox, and note why. Idempotent."""
        process = self._process
        if process is None:
            return
        if self.alive:
            self._note_end(Exit(_KILLED, lost=reason))
            if self._user is None:
                await self._sandbox.kill()
            else:
                # other programs run there, too
                await process.close_stdin()
            for channel in [*self.channels.values()]:
                if channel.on_end is not None:
                    await channel.on_end()
            for channel in (*self.channels.values(), *self.processes.values()):
                channel.wake()
            with suppress(TimeoutError):
                async with asyncio.timeout(_EXIT_TIMEOUT), self._reading:
                    while await process.read():
                        pass
                    if self._user is None:
                        ending = await process.wait()
                        self._note_end(Exit(ending.code or _KILLED, lost=ending.lost or reason))
            await process.aclose()

    def _note_end(self, ending: Exit) -> None:
        self.alive, self.ending = False, ending
        for channel in self.channels.values():
            channel.ending = ending

    async def _greeting(self, process: Process) -> Greeting:
        output = b""
        while data := await process.read():
            output += data
            try:
                if (received := next(self._reader.feed(data), None)) is not None:
                    kind, payload = received
                    if kind == Kind.READY:
                        return Greeting.model_validate_json(payload)
                    break
            except (ProtocolError, ValidationError):
                # no frame: the system's message about a program that cannot be started
                while len(output) < _MAX_ERROR and (data := await process.read()):
                    output += data
                break
        # a first process takes the sandbox with it, whatever it has said; of the others, Podman has words for a lost container
        is_lost = self._user is not None and not self._sandbox.running
        if not data and (not output or is_lost) and (lost := (await process.wait()).lost) is not None:
            raise SandboxLostError(f"the sandbox was lost while its interpreter started: {lost}")
        message = output[:_MAX_ERROR].decode(errors="replace").strip() or "it ended without a word"
        raise NoPythonError(f"no interpreter can be started in the sandbox: {message}")
