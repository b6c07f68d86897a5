"""The stream between the host and the supervisor in a sandbox: frames each way, until it ends.

Everything that comes from the sandbox is data that may be forged, too large or garbage; that ends the stream, and
nothing else.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress

from pydantic import ValidationError

from codeact_team.aio import Turns, to_the_end
from codeact_team.errors import SandboxError
from codeact_team.sandboxes.base import STARTS_AT_ONCE, Exit, Process, Sandbox
from codeact_team.sessions import shipping
from codeact_team.sessions.protocol import FROM_SUPERVISOR, FrameReader, Kind, ProtocolError
from codeact_team.sessions.replies import Greeting

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


class Link:
    """A supervisor in a sandbox, and the frames to and from it. Not bound to an event loop; for one reader at a time.

    Args:
        sandbox: A running sandbox, in which nothing else runs.

    Attributes:
        ending: How it ended, once it has.
        on_end: Awaited when it ends; whoever sends has to be kept from it.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._process: Process | None = None
        self._reader = FrameReader(FROM_SUPERVISOR)
        self._frames: deque[tuple[Kind, bytes]] = deque()
        self._sending = Turns()
        self.ending: Exit | None = None
        self.on_end: Callable[[], Awaitable[None]] | None = None

    @property
    def alive(self) -> bool:
        """Whether it was opened, and has not ended as far as is known."""
        return self._process is not None and self.ending is None

    async def open(self) -> Greeting:
        """Start the supervisor, and with it an interpreter; what it says of itself.

        Raises:
            SandboxError: If it cannot run in this sandbox, such as where Python is missing.
        """
        async with _starts:
            return await self._open()

    async def _open(self) -> Greeting:
        self._process = await self._sandbox.spawn(shipping.command(self._sandbox.python), supervises=True)
        try:
            async with asyncio.timeout(START_TIMEOUT):
                await self.send(shipping.payload())
                return await self._greeting(self._process)
        except TimeoutError:
            await to_the_end(self.end(f"it did not start within {START_TIMEOUT:g} s"))
            raise SandboxError(f"the interpreter did not start within {START_TIMEOUT:g} s") from None
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

    async def send_whole(self, data: bytes) -> None:
        """Send frames, and only then heed a cancellation."""
        if len(data) <= _AT_ONCE:
            await self.send(data)
        else:
            await to_the_end(self.send(data))

    async def receive(self) -> tuple[Kind, bytes] | None:
        """The next frame; ``None`` once the stream has ended."""
        if self._process is None or self.ending is not None:
            return None
        while not self._frames:
            data = await self._process.read()
            if not data:
                await self.end(_ENDED)
                return None
            try:
                self._frames.extend(self._reader.feed(data))
            except ProtocolError:
                await self.end(GARBLED)
                return None
        return self._frames.popleft()

    async def end(self, reason: str) -> None:
        """End whatever runs in the sandbox, and note why. Idempotent."""
        process = self._process
        if process is None:
            return
        if self.ending is None:
            self.ending = Exit(_KILLED, lost=reason)
            await self._sandbox.kill()
            if self.on_end is not None:
                await self.on_end()
            with suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WORDS):
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
        words = said[:_MAX_WORDS].decode(errors="replace").strip() or "it ended without a word"
        raise SandboxError(f"no interpreter can be started in the sandbox: {words}")
