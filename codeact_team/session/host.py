"""A session as its executor sees it: runs blocks, transfers files, and makes forks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import Protocol

from pydantic import JsonValue, ValidationError

from codeact_team.core.aio import to_the_end
from codeact_team.core.execution import Artifact, HostTools
from codeact_team.errors import ForkError, SandboxError
from codeact_team.sandbox.base import KILL_TIMEOUT, Exit, Sandbox, time_to_end
from codeact_team.sandbox.system.framing import ProtocolError, frame
from codeact_team.session.connection import (
    GARBLED,
    Failure,
    FileListing,
    Forked,
    Greeting,
    SessionChannel,
    SupervisorConnection,
    read_artifact,
    read_report,
)
from codeact_team.session.processes import ProcessServer
from codeact_team.session.protocol import (
    MAX_ARTIFACT_BYTES,
    MAX_ARTIFACTS,
    MAX_FILE_BYTES,
    RUN_HEAD,
    Kind,
    ResultFrame,
)
from codeact_team.session.tool_calls import ToolCalls, declaration_frame

INTERRUPT_GRACE = 1.0
"""Seconds between SIGINT, after which the variables survive, and the end of the interpreter. A long regular expression
needs 0.3 to notice the signal."""


async def escalate(sandbox: Sandbox, send: Callable[[bytes], Awaitable[None]]) -> None:
    """End a block by stronger and stronger means, until this is cancelled because the block has ended.

    Args:
        sandbox: The sandbox in which it runs.
        send: Sends a frame to the supervisor.
    """
    # a second interrupt, for code that swallows the first, as a destructor does
    interrupts = ((Kind.INTERRUPT, INTERRUPT_GRACE / 2),) * 2
    for request, grace in interrupts:
        with suppress(TimeoutError):
            async with asyncio.timeout(grace):
                await send(frame(request))
                await asyncio.sleep(grace)
    with suppress(TimeoutError):
        # with the sandbox go all forks, checkpoints and processes
        async with time_to_end():
            await send(frame(Kind.KILL))
            await asyncio.Event().wait()
    await sandbox.kill()
    await asyncio.sleep(INTERRUPT_GRACE)
    await sandbox.stop()


REQUEST_TIMEOUT = 60.0
"""Seconds for the transfer of a file, and for a new interpreter."""
_SETTLING_TIMEOUT = 2.0
"""Seconds beyond a block's time in which the interpreter has to read the answers to its calls, which takes it no time."""

# by the names that the supervisor sends
_FILE_ERRORS: dict[str, type[OSError]] = {
    error.__name__: error
    for error in (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)
}


_PYTHON = {"python": Kind.RUN, "setup": Kind.SETUP}


class BlockControl(Protocol):
    """Stops a block, and notes whether it has ended by itself."""

    stop: asyncio.Future[None]
    block_ended: bool

    @property
    def deadline(self) -> float:
        """When its time is over, by the event loop's clock, in seconds."""
        ...

    def paused(self) -> AbstractContextManager[None]:
        """A context in which its time does not run."""
        ...


class Session:
    """A living interpreter in a sandbox. Not bound to an event loop; one request at a time.

    Args:
        sandbox: A running sandbox, in which nothing else runs.
        channel: The channel of a fork; ``None`` for a new session.

    Attributes:
        interpreter: The number of the present interpreter, as far as is known.
        interpreter_loss: Why the one before was lost.
        processes: Starts processes in its directory. Those of a fork end with it.
    """

    def __init__(self, sandbox: Sandbox, channel: SessionChannel | None = None) -> None:
        self._sandbox = sandbox
        self._channel = SupervisorConnection(sandbox).new_channel() if channel is None else channel
        self._connection = self._channel.connection
        self.processes: ProcessServer = ProcessServer(self._connection, sandbox, home=self.home)
        self._blocks = 0
        self._declared: Sequence[Mapping[str, JsonValue]] | None = None
        """The tools that were declared to the code last."""
        self._control: BlockControl | None = None
        """Stops the running block."""
        self._tools: HostTools | None = None
        """The tools that the block may call."""
        self._artifacts: list[Artifact] = []
        """The artifacts of the block."""
        self._calls: ToolCalls | None = None
        """The calls of the block, if there are any."""
        self._escalation: asyncio.Task[None] | None = None
        """The task that ends the block, once it has to end."""
        self.interpreter = 0 if channel is None else 1
        self.interpreter_loss: str = ""

    @property
    def busy(self) -> bool:
        return self._control is not None

    @property
    def alive(self) -> bool:
        return self._channel.ending is None

    @property
    def ending(self) -> Exit | None:
        """The end of the session, if it has ended. An end between two requests shows at the next one."""
        return self._channel.ending

    async def start(self) -> str | None:
        """Start the supervisor, and with it an interpreter. Returns how code could tamper with the supervisor, if it could.

        Raises:
            SandboxError: If it cannot run in this sandbox, for example because there is no Python.
        """
        greeting = await self._connection.open()
        self.interpreter = greeting.interpreter
        return greeting.unguarded

    async def run(
        self,
        language: str,
        code: str,
        control: BlockControl,
        emit: Callable[[bytes], Awaitable[None]],
        tools: HostTools | None = None,
    ) -> tuple[ResultFrame | Exit, Sequence[Artifact]]:
        """Run a block.

        When ``control.stop`` is done, or this is cancelled, or ``emit`` raises, the code is interrupted, and killed if that
        does not end it.

        Args:
            language: ``python``, ``sh`` or ``bash``; or ``setup`` for Python code that each interpreter runs before all other
                code, unless it has inherited its effects.
            code: The block.
            control: Stops it.
            emit: Called with its output as it comes.
            tools: The tools that Python code may call. All calls have ended when the block has.

        Returns:
            How it has ended, an :class:`Exit` if the session ended with it; and its artifacts.

        Raises:
            SettingError: If the declarations of the tools do not fit into a frame.
        """
        self._blocks += 1
        # a lone surrogate has no encoding
        data = code.encode(errors="replace")
        if (kind := _PYTHON.get(language)) is not None:
            request = frame(kind, RUN_HEAD.pack(self.interpreter, self._blocks), data)
        else:
            request = frame(Kind.SHELL, language.encode(), b"\n", data)
        declarations = None if tools is None else tools.declarations
        if declarations is not self._declared:
            request = declaration_frame(declarations or ()) + request
            self._declared = declarations
        self._tools = tools
        self._control, self._artifacts = control, []
        control.stop.add_done_callback(self._stopped)
        try:
            await self._channel.send_whole(request)
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
            self._calls = self._channel.on_end = None
        if isinstance(ended, ResultFrame) and ended.output:
            await emit(ended.output)
        return ended, self._artifacts

    async def finish(self, seconds: float) -> Sequence[str]:
        """End the interpreter in order, as one that has run a script ends; kill it after so many seconds. Its next block loses it.

        Its tools are closed: nothing calls the host any more. Returns the first files that the code had open for writing.
        """
        request = frame(Kind.FINISH, RUN_HEAD.pack(self.interpreter, self._blocks))

        async def kill() -> None:
            await asyncio.sleep(seconds)
            await self._channel.send(frame(Kind.KILL))

        await self._channel.send(request)
        killing = asyncio.create_task(kill())
        try:
            async with asyncio.timeout(seconds + KILL_TIMEOUT):
                ended = await self._answer(_ignore)
        except TimeoutError:
            await self._connection.end("it did not end")
            return ()
        finally:
            killing.cancel()
            await asyncio.wait({killing})
        report = read_report(ended.report) if isinstance(ended, ResultFrame) else None
        return () if report is None else report.left_open

    async def answers(self, control: BlockControl) -> bool:
        """Whether the interpreter that was known last answers; one that has replaced it does not count.

        Args:
            control: Stops waiting for an answer.
        """
        asked = self.interpreter
        ended, _ = await self.run("setup", "", control, _ignore)
        # tracebacks show the numbers of blocks, and this was none of the user's
        self._blocks -= 1
        return isinstance(ended, ResultFrame) and ended.ran and self.interpreter == asked

    async def demand_restart(self) -> None:
        """Like :meth:`restart`, without waiting for it: everything ends before the next request."""
        self._connection.close_forks()
        await self._channel.send(frame(Kind.RESTART))

    async def restart(self) -> None:
        """End everything that runs inside, and start a new interpreter.

        Raises:
            SandboxError: If the session ended meanwhile.
        """
        self._connection.close_forks()
        await self._request(frame(Kind.RESTART), Kind.READY)

    @property
    def unit(self) -> str:
        """Its name where connections of its code are told from those of others."""
        return f"s{self._channel.number}"

    @property
    def home(self) -> str:
        """The directory in which the code starts, below the workspace; empty for the workspace itself."""
        number = self._channel.number
        return f"{self.forks_in}/{number}" if number else ""

    @property
    def forks_in(self) -> str:
        """The directory of the workspace that contains the directories of forks."""
        return self._connection.forks_in

    async def fork(self, count: int) -> Sequence[Session]:
        """Fork the session: each fork has its variables, files and shells as they are now, in the same sandbox.

        Raises:
            ForkError: If the interpreter cannot be copied as it is. The message says why.
            SandboxError: If the session ended meanwhile.
        """
        forks: list[Session] = []
        try:
            # a fork that is cancelled half-way would be unknown to everybody
            await to_the_end(self._fork(count, forks))
        except BaseException:
            for fork in forks:
                await to_the_end(fork.aclose())
            raise
        return forks

    async def _fork(self, count: int, forks: list[Session]) -> None:
        channels = [self._connection.new_channel() for _ in range(count)]
        request = {"forks": [channel.number for channel in channels], "directory": self.forks_in}
        with ExitStack() as if_not_forked:
            for channel in channels:
                if_not_forked.callback(channel.close)
            try:
                _, answer = await self._exchange(
                    frame(Kind.FORK, json.dumps(request).encode()), Kind.FORKED, ""
                )
                refused = Forked.model_validate_json(answer).refused
            except ValidationError:
                await self._connection.end(GARBLED)
                raise SandboxError(f"the session was lost: {GARBLED}") from None
            if refused is not None:
                raise ForkError(f"this session cannot be forked now: {refused}")
            if_not_forked.pop_all()
        for channel in channels:
            fork = Session(self._sandbox, channel)
            fork._declared = self._declared
            forks.append(fork)

    async def promote(self, fork: Session) -> None:
        """Continue from a fork, which ends with that: its variables, files and shells replace this session's.

        Raises:
            SandboxError: If the fork or the session has ended.
        """
        request = frame(Kind.PROMOTE, json.dumps({"fork": fork._channel.number}).encode())
        try:
            await self._request(request, Kind.READY, "nothing can go on from there")
        except OSError as error:
            raise SandboxError(str(error)) from None
        fork._channel.close()
        self._declared = fork._declared

    async def put_file(self, path: str, data: bytes) -> None:
        """Write a file of the workspace.

        Raises:
            OSError: If that fails.
            SandboxError: If the session ended meanwhile.
        """
        line = json.dumps({"path": path}).encode() + b"\n"
        await self._request(frame(Kind.PUT, line, data), Kind.DONE, path)

    async def get_file(self, path: str) -> bytes:
        """Read a file of the workspace.

        Raises:
            OSError: If that fails.
            SandboxError: If the session ended meanwhile.
        """
        request = frame(Kind.GET, json.dumps({"path": path}).encode())
        content, _ = await self._request(request, Kind.DONE, path)
        return content

    async def list_files(self) -> dict[str, int]:
        """The files of the workspace, with their sizes in bytes.

        Raises:
            SandboxError: If the session ended meanwhile.
        """
        _, listing = await self._request(frame(Kind.LIST), Kind.DONE)
        try:
            return dict(FileListing.model_validate_json(listing).files)
        except ValidationError:
            await to_the_end(self._connection.end(GARBLED))
            raise SandboxError(f"the session was lost: {GARBLED}") from None

    async def aclose(self) -> None:
        """End it with everything that runs inside; of a fork, only that fork."""
        if not self.alive:
            return
        if not self._channel.number:
            await to_the_end(self._connection.end("it was closed"))
            return
        await self.processes.close()
        with suppress(SandboxError):
            await self._request(frame(Kind.END), Kind.DONE)
        self._channel.close()

    def _stopped(self, stop: asyncio.Future[None]) -> None:
        # the loop may call this only after the block has ended
        if self._control is not None and self._control.stop is stop:
            self._expire()

    def _expire(self) -> None:
        if self._escalation is None:
            # first the interrupt, so that the code does not count as ended by itself
            self._escalation = asyncio.ensure_future(escalate(self._sandbox, self._channel.send))
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
        """Wait for the calls of a block that has ended, not much longer than the time that the block had left."""
        await calls.aclose()
        now = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(min(now + REQUEST_TIMEOUT, max(now, deadline) + _SETTLING_TIMEOUT)):
                await calls.sent()
        except TimeoutError:
            await self._connection.end("it did not take the answer to a call")

    async def _answer(self, emit: Callable[[bytes], Awaitable[None]]) -> ResultFrame | Exit:
        while (received := await self._channel.receive()) is not None:
            kind, payload = received
            if kind == Kind.OUTPUT:
                await emit(payload)
                continue
            try:
                if kind == Kind.RESULT:
                    return self._note(ResultFrame.unpack(payload))
                self._handle(kind, payload)
            except (ProtocolError, ValidationError):
                await self._connection.end(GARBLED)
        assert self.ending is not None, "without a frame, the session has ended"
        return self.ending

    def _handle(self, kind: int, payload: bytes) -> None:
        if kind == Kind.ARTIFACT:
            add_artifact(self._artifacts, read_artifact(payload))
        elif kind in (Kind.CALL, Kind.CANCEL) and self._control is None:
            raise ProtocolError("no block runs that may call")
        elif kind == Kind.CALL:
            self._block_calls().accept(payload)
        elif kind == Kind.CANCEL:
            self._block_calls().withdraw(payload)
        elif kind != Kind.READY:
            raise ProtocolError("nobody has requested that")

    def _note(self, result: ResultFrame) -> ResultFrame:
        self.interpreter, self.interpreter_loss = result.present, result.loss
        if self._control is not None:
            self._control.block_ended = True
        return result

    def _is_old(self, payload: bytes) -> bool:
        """Whether the interpreter that is ready was known before."""
        number = Greeting.model_validate_json(payload).interpreter
        is_old, self.interpreter = number <= self.interpreter, max(number, self.interpreter)
        return is_old

    def _block_calls(self) -> ToolCalls:
        if self._calls is None:
            assert self._control is not None, "a block runs"
            self._calls = ToolCalls(self._tools, self._channel.send, self._control.paused)
            self._channel.on_end = self._calls.hang_up
            if self._escalation is not None:
                self._calls.end()
        return self._calls

    async def _request(self, request: bytes, answer: Kind, path: str = "") -> tuple[bytes, bytes]:
        """Send a request. Returns the content of the file that comes, and the payload of the answer."""
        # to the end, as the next request would get this answer otherwise
        return await to_the_end(self._exchange(request, answer, path))

    async def _exchange(self, request: bytes, answer: Kind, path: str) -> tuple[bytes, bytes]:
        content = bytearray()
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT):
                await self._channel.send(request)
                while (received := await self._channel.receive()) is not None:
                    match received:
                        case Kind.READY, payload if self._is_old(payload) or answer != Kind.READY:
                            # the answer to a restart that was not awaited
                            continue
                        case Kind.FILE, data if len(content) + len(data) <= MAX_FILE_BYTES:
                            content += data
                        case Kind.FAILED, payload:
                            failure = Failure.model_validate_json(payload)
                            raise _FILE_ERRORS.get(failure.error, OSError)(f"{path}: {failure.message}")
                        case kind, payload if kind == answer:
                            return bytes(content), payload
                        case _:
                            await self._connection.end(GARBLED)
        except ValidationError:
            await self._connection.end(GARBLED)
        except TimeoutError:
            await self._connection.end(f"it did not answer within {REQUEST_TIMEOUT:g} s")
        assert self.ending is not None, "without a frame, the session has ended"
        raise SandboxError(f"the session was lost: {self.ending.lost}")


async def _ignore(_: object) -> None:
    pass


def add_artifact(artifacts: list[Artifact], artifact: Artifact) -> None:
    """Keep an artifact, unless there are too many already."""
    size = sum(one.size for one in artifacts) + artifact.size
    if len(artifacts) < MAX_ARTIFACTS and size <= MAX_ARTIFACT_BYTES:
        artifacts.append(artifact)
