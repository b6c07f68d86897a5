"""A session as its executor sees it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Protocol

from pydantic import JsonValue, ValidationError

from codeact_team.core.aio import to_the_end
from codeact_team.core.execution import Artifact, HostTools
from codeact_team.errors import ForkError, SandboxError
from codeact_team.sandbox.base import Exit, Sandbox
from codeact_team.session.link import (
    GARBLED,
    Account,
    ArtifactHead,
    Failure,
    Forked,
    Greeting,
    Line,
    Link,
    Listing,
)
from codeact_team.session.protocol import (
    MAX_ARTIFACT_BYTES,
    MAX_ARTIFACTS,
    MAX_FILE_BYTES,
    RUN_HEAD,
    Kind,
    ProtocolError,
    frame,
)
from codeact_team.session.tool_calls import ToolCalls, declaration_frame

INTERRUPT_GRACE = 1.0
"""Seconds between SIGINT, by which the variables live on, and the end of the interpreter. A long regular expression
takes 0.3 to notice it."""
KILL_GRACE = 1.0
"""Seconds that the supervisor gets to end what runs, before the sandbox does it."""


async def escalate(sandbox: Sandbox, send: Callable[[bytes], Awaitable[None]]) -> None:
    """End a block step by step, until this is cancelled because it has ended.

    Args:
        sandbox: Where it runs.
        send: Sends a frame to the supervisor.
    """
    # a second interrupt, for code that swallows the first, as a destructor does
    interrupts = ((Kind.INTERRUPT, INTERRUPT_GRACE / 2),) * 2
    for urge, grace in (*interrupts, (Kind.KILL, KILL_GRACE)):
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await send(frame(urge))
                await asyncio.sleep(grace)
    await sandbox.kill()
    await asyncio.sleep(KILL_GRACE)
    await sandbox.stop()


REQUEST_TIMEOUT = 60.0
"""Seconds for a file to be put or got, and for a fresh interpreter."""
SETTLING_TIMEOUT = 2.0
"""Seconds beyond a block's time for the answers to its calls to be taken, which is done at once."""

# as the supervisor names what an operating system can say of a file
_FILE_ERRORS: dict[str, type[OSError]] = {
    error.__name__: error
    for error in (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
}


_PYTHON = {"python": Kind.RUN, "setup": Kind.SETUP}


class BlockControl(Protocol):
    """What stops a block, and whether it has ended by itself."""

    stop: asyncio.Future[None]
    block_ended: bool

    @property
    def deadline(self) -> float:
        """When its time is over, in seconds of the event loop's clock."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """Within it, its time does not run."""
        ...


class Session:
    """A living interpreter in a sandbox. Not bound to an event loop; one request at a time.

    Args:
        sandbox: A running sandbox, in which nothing else runs.
        line: For a branch: where its frames go.

    Attributes:
        interpreter: The number of the present interpreter, as was heard last.
        interpreter_loss: Why the one before is gone.
    """

    def __init__(self, sandbox: Sandbox, line: Line | None = None) -> None:
        self._sandbox = sandbox
        self._link = Link(sandbox).new_line() if line is None else line
        self._blocks = 0
        self._told: Sequence[Mapping[str, JsonValue]] | None = None
        """The tools that the code was told of last."""
        self._control: BlockControl | None = None
        """What stops the block that runs."""
        self._tools: HostTools | None = None
        """What it may call."""
        self._artifacts: list[Artifact] = []
        """What it has made."""
        self._calls: ToolCalls | None = None
        """Its calls, once there are any."""
        self._escalation: asyncio.Task[None] | None = None
        """What makes it end, once it has to."""
        self.interpreter = 0 if line is None else 1
        self.interpreter_loss = ""

    @property
    def busy(self) -> bool:
        """Whether a block runs."""
        return self._control is not None

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return self._link.alive

    @property
    def ending(self) -> Exit | None:
        """How it ended, once it has; what has ended between two requests shows at the next one."""
        return self._link.ending

    async def start(self) -> str | None:
        """Start the supervisor, and with it an interpreter; why code could tamper with the supervisor, if it could.

        Raises:
            SandboxError: If it cannot run in this sandbox, such as where Python is missing.
        """
        greeting = await self._link.open()
        self.interpreter = greeting.interpreter
        return greeting.unguarded

    async def run(
        self,
        language: str,
        code: str,
        control: BlockControl,
        emit: Callable[[bytes], Awaitable[None]],
        tools: HostTools | None = None,
    ) -> tuple[Account | Exit, Sequence[Artifact]]:
        """Run a block.

        When ``control.stop`` is done, or this is cancelled, or ``emit`` raises, the code is interrupted, and killed if
        it does not end by that.

        Args:
            language: ``python``, ``sh`` or ``bash``; or ``setup`` for Python code that is to be in each interpreter before all
                others, which runs where it is not there yet.
            code: The block.
            control: What stops it.
            emit: Gets its output as it comes.
            tools: What Python code may call. All calls have ended when it has.

        Returns:
            How it ended, an :class:`Exit` where the session ended with it; and its artifacts.

        Raises:
            SettingError: If there is more to tell of the tools than a frame can hold.
        """
        self._blocks += 1
        # half a character has no bytes
        data = code.encode(errors="replace")
        if (kind := _PYTHON.get(language)) is not None:
            request = frame(kind, RUN_HEAD.pack(self.interpreter, self._blocks), data)
        else:
            request = frame(Kind.SHELL, language.encode(), b"\n", data)
        request = self._introduce(tools) + request
        self._tools = tools
        self._control, self._artifacts = control, []
        control.stop.add_done_callback(self._stopped)
        try:
            await self._link.send_whole(request)
            ended = await self._answer(emit)
        except BaseException:
            self._expire()
            await to_the_end(self._answer(_ignore))
            raise
        finally:
            self._control = None
            control.stop.remove_done_callback(self._stopped)
            if self._escalation is not None or (self._calls is not None and not self._calls.idle):
                await to_the_end(self._end_block(control.deadline))
            self._calls = self._link.on_end = None
        if isinstance(ended, Account) and ended.output:
            await emit(ended.output)
        return ended, self._artifacts

    async def answers(self, control: BlockControl) -> bool:
        """Whether the interpreter answers that was heard of last; one that has taken its place does not count.

        Args:
            control: What stops asking.
        """
        asked = self.interpreter
        ended, _ = await self.run("setup", "", control, _ignore)
        # tracebacks name blocks by their numbers, and this was none
        self._blocks -= 1
        return isinstance(ended, Account) and ended.ran and self.interpreter == asked

    async def demand_restart(self) -> None:
        """Like :meth:`restart`, without waiting for it: what runs ends before whatever is asked for next."""
        self._link.close_branches()
        await self._link.send(frame(Kind.RESTART))

    async def restart(self) -> None:
        """End everything that runs inside, and start a fresh interpreter.

        Raises:
            SandboxError: If the session ended over it.
        """
        self._link.close_branches()
        await self._request(frame(Kind.RESTART), Kind.READY)

    @property
    def home(self) -> str:
        """The directory in which its code begins, below the workspace; nothing for the workspace itself."""
        number = self._link.number
        return f"{self.branches_in}/{number}" if number else ""

    @property
    def branches_in(self) -> str:
        """The directory of the workspace in which its branches have theirs."""
        return self._link.branches_in

    async def fork(self, count: int) -> Sequence[Session]:
        """Make branches: sessions with variables, files and shells as they are here now, in the same sandbox.

        Raises:
            ForkError: If the interpreter cannot be copied as it is: it says what stands in the way.
            SandboxError: If the session ended over it.
        """
        branches: list[Session] = []
        try:
            # cancelled half-way, nobody would know of them
            await to_the_end(self._fork(count, branches))
        except BaseException:
            for branch in branches:
                await to_the_end(branch.aclose())
            raise
        return branches

    async def _fork(self, count: int, branches: list[Session]) -> None:
        lines = [self._link.branch() for _ in range(count)]
        request = {"branches": [line.number for line in lines], "directory": self.branches_in}
        try:
            _, answer = await self._exchange(frame(Kind.FORK, json.dumps(request).encode()), Kind.FORKED, "")
            refused = Forked.model_validate_json(answer).refused
        except BaseException as error:
            for line in lines:
                line.close()
            if not isinstance(error, ValidationError):
                raise
            await self._link.end(GARBLED)
            raise SandboxError(f"the session was lost: {GARBLED}") from None
        if refused is not None:
            for line in lines:
                line.close()
            raise ForkError(f"this session cannot be forked now: {refused}")
        for line in lines:
            branch = Session(self._sandbox, line)
            branch._told = self._told
            branches.append(branch)

    async def promote(self, branch: Session) -> None:
        """Go on where a branch has got to, which ends with that: its variables, files and shells take the place of these.

        Raises:
            SandboxError: If the branch or the session has ended.
        """
        request = frame(Kind.PROMOTE, json.dumps({"branch": branch._link.number}).encode())
        try:
            await self._request(request, Kind.READY, "nothing can go on from there")
        except OSError as error:
            raise SandboxError(str(error)) from None
        branch._link.close()
        self._told = branch._told

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
        """End it with all that runs inside; a branch alone."""
        if not self.alive:
            return
        if not self._link.number:
            await to_the_end(self._link.end("it was closed"))
            return
        with suppress(SandboxError):
            await self._request(frame(Kind.END), Kind.DONE)
        self._link.close()

    def _introduce(self, tools: HostTools | None) -> bytes:
        """What tells the code of the tools, if that is not what it knows."""
        declarations = None if tools is None else tools.declarations
        if declarations is self._told:
            return b""
        told, self._told = declaration_frame(declarations or ()), declarations
        return told

    def _stopped(self, stop: asyncio.Future[None]) -> None:
        # the loop may tell of it only after the block has ended
        if self._control is not None and self._control.stop is stop:
            self._expire()

    def _expire(self) -> None:
        """Begin to end the block."""
        if self._escalation is None:
            # first the interrupt, so that the code is not taken to have ended by itself
            self._escalation = asyncio.ensure_future(escalate(self._sandbox, self._link.send))
            if self._calls is not None:
                self._calls.end()

    async def _end_block(self, deadline: float) -> None:
        escalation, self._escalation = self._escalation, None
        if escalation is not None:
            escalation.cancel()
            await asyncio.wait({escalation})
        if self._calls is not None and not self._calls.idle:
            await self._settle(self._calls, deadline)

    async def _settle(self, calls: ToolCalls, deadline: float) -> None:
        """Wait for the calls of a block that has ended, not much longer than the block might have taken itself."""
        await calls.aclose()
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(min(now + REQUEST_TIMEOUT, max(now, deadline) + SETTLING_TIMEOUT)):
                await calls.sent()
        except TimeoutError:
            await self._link.end("it did not take the answer to a call")

    async def _answer(self, emit: Callable[[bytes], Awaitable[None]]) -> Account | Exit:
        """Take in what comes of the block that runs, until it ends."""
        while (received := await self._link.receive()) is not None:
            kind, payload = received
            if kind == Kind.OUTPUT:
                await emit(payload)
                continue
            try:
                if kind == Kind.RESULT:
                    return self._take_account(payload)
                self._take(kind, payload)
            except (ProtocolError, ValidationError):
                await self._link.end(GARBLED)
        assert self.ending is not None, "without a frame, the session has ended"
        return self.ending

    def _take(self, kind: Kind, payload: bytes) -> None:
        if kind == Kind.ARTIFACT:
            head, _, data = payload.partition(b"\n")
            add_artifact(self._artifacts, Artifact(ArtifactHead.model_validate_json(head).mime_type, data))
        elif kind == Kind.CALL:
            self._block_calls().take(payload)
        elif kind == Kind.CANCEL:
            self._block_calls().withdraw(payload)
        elif kind != Kind.READY:
            raise ProtocolError("nobody has asked for that")

    def _take_account(self, payload: bytes) -> Account:
        account = Account.read(payload)
        self.interpreter, self.interpreter_loss = account.present, account.loss
        if self._control is not None:
            self._control.block_ended = True
        return account

    def _is_old(self, payload: bytes) -> bool:
        """Whether the interpreter that is ready is known."""
        number = Greeting.model_validate_json(payload).interpreter
        is_old, self.interpreter = number <= self.interpreter, max(number, self.interpreter)
        return is_old

    def _block_calls(self) -> ToolCalls:
        if self._calls is None:
            assert self._control is not None, "a block runs"
            self._calls = ToolCalls(self._tools, self._link.send, self._control.paused)
            self._link.on_end = self._calls.hang_up
            if self._escalation is not None:
                self._calls.end()
        return self._calls

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
                        case Kind.READY, payload if self._is_old(payload) or answer != Kind.READY:
                            # of a restart that nobody has waited for
                            continue
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


async def _ignore(_: object) -> None:
    pass


def add_artifact(artifacts: list[Artifact], artifact: Artifact) -> None:
    """Keep an artifact, unless there are too many by now."""
    size = sum(len(one.data) for one in artifacts) + len(artifact.data)
    if len(artifacts) < MAX_ARTIFACTS and size <= MAX_ARTIFACT_BYTES:
        artifacts.append(artifact)
