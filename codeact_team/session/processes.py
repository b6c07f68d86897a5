"""Processes in a sandbox as the host sees them: several at once, next to the living interpreter."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Protocol, Self

from codeact_team.core.aio import FairLock, accompanied, to_the_end
from codeact_team.errors import SandboxLostError
from codeact_team.sandbox.base import Cause, Sandbox, limit_sentence
from codeact_team.sandbox.processes import (
    CodeFile,
    Input,
    NewestOutput,
    OutputCallback,
    ProcessOutput,
    ProcessRequest,
    ProcessResult,
    TerminalSize,
    pass_on,
)
from codeact_team.session.connection import SupervisorConnection
from codeact_team.session.process_channel import ProcessChannel, ProcessTransport
from codeact_team.session.protocol import (
    KILL_TREE,
    MAX_INPUT_BYTES,
    MAX_PROCESSES,
    MAX_START_BYTES,
    MOST_SIGNALS,
    Kind,
    Wait,
)


class _GrowthLimit(Protocol):
    """Limits the growth of a workspace.

    Attributes:
        pause: Seconds until the next check.
    """

    pause: float

    async def check(self) -> str | None:
        """The setting that is exceeded, with its value, or ``None``."""
        ...


class Performers(Protocol):
    """Who runs processes, as far as the network is concerned; they have units of a supervisor."""

    def begin(self, unit: str) -> None:
        """Note that a process begins, in the present context."""
        ...

    def end(self, unit: str) -> None:
        """Note that it has ended."""
        ...


class SandboxProcess:
    """A process that runs in a sandbox. Its whole tree ends when this is closed, and with the sandbox.

    Several tasks may read, write and wait at once. A method raises a ``SandboxLostError`` if the sandbox has ended, and a
    ``ValueError`` once this is closed.

    Attributes:
        args: Its arguments.
    """

    def __init__(self, transport: ProcessTransport) -> None:
        self.args: list[str] = transport.args
        self._transport = transport
        self._writing = FairLock()
        self._has_ended = False
        self._is_closed = False

    @property
    def returncode(self) -> int | None:
        """Its exit code, negative for a signal, as far as is known: :meth:`poll` and :meth:`wait` find it out."""
        return None if (ended := self._transport.exit) is None else ended.code

    @property
    def timed_out(self) -> bool:
        """Whether its time was over."""
        return (ended := self._transport.exit) is not None and ended.timed_out

    @property
    def limit(self) -> str | None:
        """The limit of the sandbox that it ran into, in a sentence, if it has failed and that is known."""
        return self._transport.limit

    async def read(self) -> ProcessOutput:
        """Wait for output. Returns an empty one once the process has ended and everything was read."""
        while not self._has_ended:
            if output := await self._read(Wait.FOR_OUTPUT):
                return output
        return ProcessOutput()

    async def read_available(self) -> ProcessOutput:
        """Read its output so far, at most 256 KiB of each stream."""
        return ProcessOutput() if self._has_ended else await self._read(Wait.NOT)

    async def _read(self, wait: Wait) -> ProcessOutput:
        output, self._has_ended = await self._open_transport.read(wait)
        return output

    async def write(self, data: bytes) -> None:
        """Write to its stdin, and wait until it is on its way. It is no error if the process does not read it."""
        transport = self._open_transport
        async with self._writing:
            await transport.write(data)

    async def close_stdin(self) -> None:
        """Close its stdin; at a terminal, send the character for the end of the input."""
        transport = self._open_transport
        async with self._writing:
            await transport.send(Kind.INPUT)

    async def poll(self) -> int | None:
        """Its exit code if it has ended, and otherwise ``None``."""
        if self.returncode is None or not self._is_closed:
            await self._open_transport.poll()
        return self.returncode

    async def has_left(self) -> bool:
        """Whether something that it has started still runs, once it has ended itself."""
        await self.poll()
        return self._transport.has_left

    async def wait(self) -> int:
        """Wait until it has ended, and return its exit code. Its remaining children end with :meth:`aclose`."""
        if self.returncode is None:
            await self._open_transport.wait()
        assert self.returncode is not None, "it has come"
        return self.returncode

    async def send_signal(self, number: int) -> None:
        """Send a signal to the process and its group. It is no error if it has ended.

        Raises a ``ValueError`` if no signal has this number.
        """
        if not 0 < number <= MOST_SIGNALS:
            raise ValueError(f"no signal has the number {number}")
        await self._open_transport.send(Kind.SIGNAL, bytes([number]))

    async def terminate(self) -> None:
        """Send SIGTERM to the process and its group."""
        await self.send_signal(15)

    async def kill(self) -> None:
        """End the process with all that it has started, whatever that has forked into."""
        await self._open_transport.send(Kind.SIGNAL, bytes([KILL_TREE]))

    async def resize(self, size: TerminalSize) -> None:
        """Change the size of its terminal; no effect if it has none."""
        rows, columns = size
        content = json.dumps({"rows": rows, "columns": columns}).encode()
        await self._open_transport.send(Kind.RESIZE, content)

    async def aclose(self) -> None:
        """End the process with all that it has started. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            await self._transport.close()

    @property
    def _open_transport(self) -> ProcessTransport:
        if self._is_closed:
            raise ValueError(f"the process {self.args[0]!r} is closed")
        return self._transport

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class ProcessServer:
    """Starts processes in the sandbox of a supervisor.

    Args:
        connection: The stream to the supervisor.
        sandbox: The sandbox.
        home: The directory below the workspace in which they start.

    Attributes:
        connection: The stream to the supervisor.
        python: The Python in the sandbox.
        quota: Limits the growth of the workspace; ``None`` for no limit.
    """

    def __init__(self, connection: SupervisorConnection, sandbox: Sandbox, *, home: str = "") -> None:
        self.connection = connection
        self.python: str = sandbox.python
        self._limits = sandbox.limits
        self._apart = sandbox.keeps_processes_apart
        self._home = home
        self.quota: _GrowthLimit | None = None
        self.performers: Performers | None = None
        self._watching: asyncio.Task[None] | None = None
        """Counts what the processes add to the workspace, while some run."""
        self._channels: set[ProcessChannel] = set()

    async def start(self, request: ProcessRequest) -> SandboxProcess:
        """Start a process. Raises as :meth:`run` does."""
        return SandboxProcess(await self.open(request))

    async def open(self, request: ProcessRequest) -> ProcessChannel:
        """Start a process, for its transport. Raises as :meth:`run` does."""
        channel = self._new_channel(request)
        start = self._start_frame(channel, request, has_input=True, runs_out=False)
        try:
            await self.connection.send_whole(start)
            await channel.wait_for(lambda: channel.started)
        except BaseException:
            await channel.close()
            raise
        if channel.refusal is not None:
            self._forget(channel)
            raise channel.failure(channel.refusal)
        return channel

    async def run_file(self, request: ProcessRequest, file: CodeFile) -> ProcessChannel:
        """Write a file of code and start the process that runs it. All that it leaves ends with it.

        Returns its transport at once: that it cannot be started shows when its output is read.
        """
        channel = self._new_channel(request)
        start = self._start_frame(channel, request, has_input=False, runs_out=True, file=file)
        try:
            await self.connection.send_whole(start + channel.question(Wait.FOR_OUTPUT))
        except BaseException:
            await channel.close()
            raise
        return channel

    async def run(
        self, request: ProcessRequest, input: Input | None = None, on_output: OutputCallback | None = None
    ) -> ProcessResult:
        """Run a process to its end; all that it leaves running ends with it, too.

        Raises:
            subprocess.TimeoutExpired: If it does not end within its time.
            OSError: If it cannot be started: a ``FileNotFoundError`` without such a program or directory.
            SandboxLostError: If the sandbox ends meanwhile.
        """
        channel = self._new_channel(request)
        wait = Wait.FOR_END if on_output is None else Wait.FOR_OUTPUT
        ask = channel.request(Kind.READ, bytes([wait]))
        first = [self._start_frame(channel, request, has_input=input is not None, runs_out=True)]
        if isinstance(input, bytes) and len(input) <= MAX_INPUT_BYTES:
            first += [channel.request(Kind.INPUT, input)] if input else []
            first.append(channel.request(Kind.INPUT))
            input = None
        newest = NewestOutput(request.output_limit)
        has_ended = False
        try:
            await self.connection.send_whole(b"".join((*first, ask)))
            collecting = _collect(channel, ask, newest, on_output)
            await (collecting if input is None else accompanied(_feed(channel, input), collecting))
            has_ended = True
        finally:
            if has_ended:
                self._forget(channel)
            else:
                await channel.close()
        if channel.refusal is not None:
            raise channel.failure(channel.refusal)
        ended, args, output = channel.exit, channel.args, newest.output()
        assert ended is not None, "its end comes before the last of its output"
        if ended.timed_out:
            raise subprocess.TimeoutExpired(args, request.timeout or 0.0, output.stdout, output.stderr)
        return ProcessResult(args, ended.code, output, channel.limit_behind(output))

    async def answers(self) -> bool:
        """Whether the supervisor answers. May never return, so limit the time."""
        channel = self._new_channel(ProcessRequest(["true"]))
        # it says of a process that it has not started that nothing is left of it
        await channel.close()
        return self.connection.alive

    def _new_channel(self, request: ProcessRequest) -> ProcessChannel:
        connection = self.connection
        if len(connection.processes) >= MAX_PROCESSES:
            raise BlockingIOError(
                errno.EAGAIN, f"a sandbox can have at most {MAX_PROCESSES} processes at a time"
            )
        channel = ProcessChannel(connection, connection.next_process, request, self._limits, self._forget)
        connection.processes[channel.number] = channel
        if self.performers is not None:
            self.performers.begin(f"p{channel.number}")
        self._channels.add(channel)
        if self.quota is not None and self._watching is None:
            self._watching = asyncio.create_task(self._watch(self.quota))
        connection.next_process += 1
        return channel

    def _start_frame(
        self,
        channel: ProcessChannel,
        request: ProcessRequest,
        *,
        has_input: bool,
        runs_out: bool,
        file: CodeFile | None = None,
    ) -> bytes:
        if self._home:
            request = replace(request, cwd=os.path.join(self._home, request.cwd or ""))
        content = request.encoded(has_input=has_input, runs_out=runs_out, apart=self._apart, code_file=file)
        if len(content) > MAX_START_BYTES:
            self._forget(channel)
            raise OSError(errno.E2BIG, os.strerror(errno.E2BIG), request.args[0])
        return channel.request(Kind.START, content, *(() if file is None else (b"\n", file.code)))

    def _forget(self, channel: ProcessChannel) -> None:
        is_first = self.connection.processes.pop(channel.number, None) is not None
        if self.performers is not None and is_first:
            self.performers.end(f"p{channel.number}")
        self._channels.discard(channel)
        if not self._channels and self._watching is not None:
            self._watching.cancel()
            self._watching = None
        channel.is_over = True
        channel.wake()

    async def _watch(self, quota: _GrowthLimit) -> None:
        while True:
            await asyncio.sleep(quota.pause)
            if (exceeded := await quota.check()) is None:
                continue
            # which of them has added so much is not known
            for channel in [*self._channels]:
                channel.exceeded = limit_sentence(Cause.DISK, exceeded)
                with suppress(SandboxLostError):
                    await channel.send(Kind.SIGNAL, bytes([KILL_TREE]))

    async def close(self) -> None:
        """End all processes that were started here."""
        for channel in [*self._channels]:
            await channel.close()


@asynccontextmanager
async def serving_alone(sandbox: Sandbox) -> AsyncGenerator[ProcessServer]:
    """A process server in a running sandbox, for which nothing else runs there. Raises as :meth:`SupervisorConnection.open`."""
    connection = SupervisorConnection(sandbox, only_processes=True)
    await connection.open()
    try:
        yield ProcessServer(connection, sandbox)
    finally:
        await to_the_end(connection.end("it was closed"))


async def _collect(
    channel: ProcessChannel, ask: bytes, newest: NewestOutput, on_output: OutputCallback | None
) -> None:
    """Read all that a process writes, after the first question for it. Returns at once if the process was refused."""
    while True:
        await channel.wait_for(lambda: bool(channel.progress) or channel.refusal is not None)
        if channel.refusal is not None:
            return
        output, has_ended = channel.pop_progress()
        if not has_ended:
            await channel.connection.send_whole(ask)
        newest.add(output)
        if on_output is not None:
            await pass_on(output, on_output)
        if has_ended:
            return


async def _feed(channel: ProcessChannel, input: Input) -> None:
    if isinstance(input, bytes):
        await channel.write(input)
    else:
        async for piece in input:
            await channel.write(piece)
    await channel.send(Kind.INPUT)
