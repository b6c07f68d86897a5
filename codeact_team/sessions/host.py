"""The host's half of a session: asks the supervisor in a sandbox, and takes in what comes back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import suppress

from pydantic import JsonValue, ValidationError

from codeact_team.aio import to_the_end
from codeact_team.errors import SandboxError
from codeact_team.execution import Artifact, HostTools
from codeact_team.sandboxes.base import Exit, Sandbox
from codeact_team.sessions.accounts import Account, ArtifactHead, Failure, Greeting, Listing
from codeact_team.sessions.calls import Calls, introduction
from codeact_team.sessions.link import GARBLED, Link
from codeact_team.sessions.protocol import MAX_FILE_BYTES, Kind, ProtocolError, frame
from codeact_team.sessions.watch import Watch

REQUEST_TIMEOUT = 60.0
"""Seconds for a file to be put or got, and for a fresh interpreter."""

# as the supervisor names what an operating system can say of a file
_FILE_ERRORS: dict[str, type[OSError]] = {
    error.__name__: error
    for error in (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
}


class Session:
    """A living interpreter in a sandbox. Not bound to an event loop; one request at a time.

    Args:
        sandbox: A running sandbox, in which nothing else runs.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._link = Link(sandbox)
        self._blocks = 0
        self._told: Sequence[Mapping[str, JsonValue]] | None = None
        """The tools that the code was told of last."""
        self.busy = False
        """Whether a block runs."""
        self.timed_out = False
        """Whether the time of the last block was over before the block was."""
        self.untold_loss: str | None = None
        """Why the interpreter was lost in a block whose end nobody has read; to be cleared by whoever has told it."""

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._link.alive

    @property
    def ending(self) -> Exit | None:
        """How it ended, once it has; what has ended between two requests shows at the next one."""
        return self._link.ending

    async def start(self) -> Greeting:
        """Start the supervisor, and with it an interpreter; what it says of itself.

        Raises:
            SandboxError: If it cannot run in this sandbox, such as where Python is missing.
        """
        return await self._link.open()

    async def run(
        self,
        language: str,
        code: str,
        *,
        stop: asyncio.Future[None],
        deadline: float,
        tools: HostTools | None = None,
    ) -> AsyncGenerator[bytes | Artifact | Account | Exit]:
        """Run a block.

        When ``stop`` is done, or at the ``deadline``, or when nobody reads on, the code is interrupted, and killed if
        it does not end by that.

        Args:
            language: ``python``, ``sh`` or ``bash``.
            code: The block.
            stop: Stops it.
            deadline: When its time is over, in seconds of the event loop's clock.
            tools: What Python code may call. All calls have ended when it has.

        Yields:
            Output and artifacts as they come, then how it ended: an :class:`Exit` where the session ended with it.

        Raises:
            SettingError: If there is more to tell of the tools than a frame can hold.
        """
        self._blocks += 1
        if language == "python":
            kind, request = Kind.RUN, {"code": code, "number": self._blocks}
        else:
            kind, request = Kind.SHELL, {"code": code, "language": language}
        opening = self._introduce(tools) + frame(kind, json.dumps(request).encode())
        watch = Watch(self._sandbox, self._link.send, stop=stop, deadline=deadline)
        calls = Calls(tools, self._link.send, watch.paused)
        watch.on_expiry, self._link.on_end = calls.end, calls.hang_up
        self.busy = True
        try:
            await self._link.send_whole(opening)
            while not isinstance(item := await self._answer_to_run(calls), Account | Exit):
                yield item
        except BaseException:
            watch.expire()
            await to_the_end(self._drain(calls))
            raise
        finally:
            self.busy, self.timed_out = False, watch.timed_out
            try:
                await watch.aclose()
            finally:
                if not calls.idle:
                    await to_the_end(self._settle(calls))
                self._link.on_end = None
        yield item

    async def demand_restart(self) -> None:
        """Like :meth:`restart`, without waiting for it: what runs ends before whatever is asked for next."""
        self._link.unwanted += 1
        await self._link.send(frame(Kind.RESTART))

    async def restart(self) -> None:
        """End everything that runs inside, and start a fresh interpreter.

        Raises:
            SandboxError: If the session ended over it.
        """
        await self._request(frame(Kind.RESTART), Kind.READY)

    async def put_file(self, path: str, data: bytes) -> None:
        """Write a file of the workspace.

        Raises:
            OSError: If that cannot be done.
            SandboxError: If the session ended over it.
        """
        line = json.dumps({"path": path}).encode() + b"\n"
        await self._request(frame(Kind.PUT, line, data), Kind.DONE, path)

    async def get_file(self, path: str) -> bytes:
        """Read a file of the workspace.

        Raises:
            OSError: If that cannot be done.
            SandboxError: If the session ended over it.
        """
        request = frame(Kind.GET, json.dumps({"path": path}).encode())
        content, _ = await self._request(request, Kind.DONE, path)
        return content

    async def list_files(self) -> dict[str, int]:
        """The files of the workspace, with their sizes in bytes.

        Raises:
            SandboxError: If the session ended over it.
        """
        _, listing = await self._request(frame(Kind.LIST), Kind.DONE)
        try:
            return dict(Listing.model_validate_json(listing).files)
        except ValidationError:
            await to_the_end(self._link.end(GARBLED))
            raise SandboxError(f"the session was lost: {GARBLED}") from None

    async def aclose(self) -> None:
        """End it with all that runs inside."""
        if self.alive:
            await to_the_end(self._link.end("it was closed"))

    def _introduce(self, tools: HostTools | None) -> bytes:
        """What tells the code of the tools, if that is not what it knows."""
        declarations = None if tools is None else tools.declarations
        if declarations is self._told:
            return b""
        told, self._told = introduction(declarations or ()), declarations
        return told

    async def _settle(self, calls: Calls) -> None:
        """Wait for the calls of a block that has ended."""
        await calls.aclose()
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                await calls.sent()
        except TimeoutError:
            await self._link.end("it did not take the answer to a call")

    async def _drain(self, calls: Calls) -> None:
        """Let the block that runs, and of which nobody reads on, come to its end."""
        while not isinstance(item := await self._answer_to_run(calls), Account | Exit):
            pass
        if isinstance(item, Account):
            self.untold_loss = item.lost

    async def _answer_to_run(self, calls: Calls) -> bytes | Artifact | Account | Exit:
        try:
            while (received := await self._link.receive()) is not None:
                match received:
                    case Kind.OUTPUT, output:
                        return output
                    case Kind.ARTIFACT, payload:
                        head, _, data = payload.partition(b"\n")
                        return Artifact(ArtifactHead.model_validate_json(head).mime_type, data)
                    case Kind.RESULT, payload:
                        return Account.read(payload)
                    case Kind.CALL, payload:
                        calls.take(payload)
                    case Kind.CANCEL, payload:
                        calls.withdraw(payload)
                    case _:
                        await self._link.end(GARBLED)
        except (ProtocolError, ValidationError):
            await self._link.end(GARBLED)
        assert self.ending is not None, "without a frame, the session has ended"
        return self.ending

    async def _request(self, request: bytes, answer: Kind, path: str = "") -> tuple[bytes, bytes]:
        """Ask for something, and return the content of the file that comes, and the answer itself."""
        asking = asyncio.ensure_future(self._exchange(request, answer, path))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            # the answer would meet the next request
            with suppress(OSError, SandboxError):
                await to_the_end(asking)
            raise

    async def _exchange(self, request: bytes, answer: Kind, path: str) -> tuple[bytes, bytes]:
        content = bytearray()
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                await self._link.send(request)
                while (received := await self._link.receive()) is not None:
                    match received:
                        case Kind.FILE, data if len(content) + len(data) <= MAX_FILE_BYTES:
                            content += data
                        case Kind.FAILED, payload:
                            failure = Failure.model_validate_json(payload)
                            raise _FILE_ERRORS.get(failure.error, OSError)(f"{path}: {failure.message}")
                        case kind, payload if kind == answer:
                            return bytes(content), payload
                        case _:
                            await self._link.end(GARBLED)
        except ValidationError:
            await self._link.end(GARBLED)
        except TimeoutError:
            await self._link.end(f"it did not answer within {REQUEST_TIMEOUT:g} s")
        assert self.ending is not None, "without a frame, the session has ended"
        raise SandboxError(f"the session was lost: {self.ending.lost}")
