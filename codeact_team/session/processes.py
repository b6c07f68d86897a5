"""Processes in a sandbox as the host sees them: several at once, next to the living interpreter."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import subprocess
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, Self

from codeact_team.core.aio import Turns, accompanied, to_the_end
from codeact_team.errors import SandboxLostError
from codeact_team.sandbox.base import KILLED, Cause, Exit, Limits, Sandbox, limit_sentence
from codeact_team.sandbox.processes import (
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
from codeact_team.session.process_channel import MOST_SIGNALS, ProcessChannel, failure_of, limit_of
from codeact_team.session.protocol import (
    KILL_TREE,
    MAX_INPUT_BYTES,
    MAX_PROCESSES,
    MAX_START_BYTES,
    Kind,
    Wait,
)

_CLOSE_TIMEOUT = 30.0
"""Seconds that a sandbox gets to end a process and all that it has started; after that, it ends itself."""


class GrowthLimit(Protocol):
    """Limits the growth of a workspace.

    Attributes:
        pause: Seconds until the next check.
    """

    pause: float

    async def check(self) -> str | None:
        """The setting that is exceeded, with its value, or ``None``."""
        ...


class SandboxProcess:
    """A process that runs in a sandbox. Its whole tree ends when this is closed, and with the sandbox.

    Several tasks may read, write and wait at once. A method raises a ``SandboxLostError`` if the sandbox has ended, and a
    ``ValueError`` once this is closed.

    Attributes:
        args: Its arguments.
    """

    def __init__(
        self,
        channel: ProcessChannel,
        request: ProcessRequest,
        limits: Limits,
        close: Callable[[ProcessChannel], Awaitable[None]],
    ) -> None:
        self._channel = channel
        self._limits = limits
        self._close = close
        self.args = request.args
        self._reading = Turns()
        self._writing = Turns()
        self._asked = 0
        """How many questions for output are not answered yet."""
        self._has_ended = False
        self._is_closed = False

    @property
    def returncode(self) -> int | None:
        """Its exit code, negative for a signal, as far as is known: :meth:`poll` and :meth:`wait` find it out."""
        return None if self._channel.exit is None else self._channel.exit.code

    @property
    def timed_out(self) -> bool:
        """Whether its time was over."""
        return self._channel.exit is not None and self._channel.exit.timed_out

    @property
    def limit(self) -> str | None:
        """The limit of the sandbox that it ran into, in a sentence, if it has failed and that is known."""
        return limit_of(self._channel, self._limits, ProcessOutput())

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
        self._require_open()
        channel = self._channel
        async with self._reading:
            if not self._asked or wait == Wait.NOT:
                self._asked += 1
                await channel.send(Kind.READ, bytes([wait]))
            # a question from a wait that was cancelled is answered, too
            parts: list[ProcessOutput] = []
            while self._asked:
                await channel.wait_for(lambda: bool(channel.progress))
                output, self._has_ended = channel.take()
                self._asked -= 1
                parts.append(output)
        if len(parts) == 1:
            return parts[0]
        return ProcessOutput(
            b"".join(part.stdout for part in parts),
            b"".join(part.stderr for part in parts),
            sum(part.stdout_omitted for part in parts),
            sum(part.stderr_omitted for part in parts),
        )

    async def write(self, data: bytes) -> None:
        """Write to its stdin, and wait until it is on its way. It is no error if the process does not read it."""
        self._require_open()
        async with self._writing:
            await self._channel.write(data)

    async def close_stdin(self) -> None:
        """Close its stdin; at a terminal, send the character for the end of the input."""
        self._require_open()
        async with self._writing:
            await self._channel.send(Kind.INPUT)

    async def poll(self) -> int | None:
        """Its exit code if it has ended, and otherwise ``None``."""
        if not (self._channel.closed or (self._is_closed and self._channel.exit)):
            self._require_open()
            before = self._channel.polled
            await self._channel.send(Kind.POLL)
            await self._channel.wait_for(lambda: self._channel.polled > before)
        return self.returncode

    async def has_left(self) -> bool:
        """Whether something that it has started still runs, once it has ended itself."""
        await self.poll()
        ended = self._channel.exit
        return ended is not None and ended.leaves and not self._channel.closed

    async def wait(self) -> int:
        """Wait until it has ended, and return its exit code. Its remaining children end with :meth:`aclose`."""
        if self._channel.exit is None:
            self._require_open()
        await self._channel.wait_for(lambda: self._channel.exit is not None)
        assert self._channel.exit is not None, "it has come"
        return self._channel.exit.code

    async def exit(self) -> Exit:
        """How it has ended, also with its sandbox, for those who run blocks."""
        try:
            code = await self.wait()
        except SandboxLostError:
            return self._channel.connection.ending or Exit(KILLED, lost="it was closed")
        ended = self._channel.exit
        assert ended is not None, "it has come"
        return Exit(
            code if code >= 0 else 128 - code,
            oom_kills=ended.oom_kills,
            fork_failures=ended.fork_failures,
        )

    async def send_signal(self, number: int) -> None:
        """Send a signal to the process and its group. It is no error if it has ended.

        Raises a ``ValueError`` if no signal has this number.
        """
        self._require_open()
        if not 0 < number <= MOST_SIGNALS:
            raise ValueError(f"no signal has the number {number}")
        await self._channel.send(Kind.SIGNAL, bytes([number]))

    async def terminate(self) -> None:
        """Send SIGTERM to the process and its group."""
        await self.send_signal(15)

    async def kill(self) -> None:
        """End the process with all that it has started, whatever that has forked into."""
        self._require_open()
        await self._channel.send(Kind.SIGNAL, bytes([KILL_TREE]))

    async def resize(self, size: TerminalSize) -> None:
        """Change the size of its terminal; no effect if it has none."""
        self._require_open()
        rows, columns = size
        await self._channel.send(Kind.RESIZE, json.dumps({"rows": rows, "columns": columns}).encode())

    async def aclose(self) -> None:
        """End the process with all that it has started. Idempotent."""
        if not self._is_closed:
            self._is_closed = True
            await to_the_end(self._close(self._channel))

    def _require_open(self) -> None:
        if self._is_closed or self._channel.is_over:
            raise ValueError(f"the process {self.args[0]!r} is closed")

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
        quota: Limits the growth of the workspace; ``None`` for no limit.
    """

    def __init__(self, connection: SupervisorConnection, sandbox: Sandbox, *, home: str = "") -> None:
        self.connection = connection
        self._limits = sandbox.limits
        self._apart = sandbox.keeps_processes_apart
        self._home = home
        self.quota: GrowthLimit | None = None
        self._watching: asyncio.Task[None] | None = None
        """Counts what the processes add to the workspace, while some run."""
        self._channels: set[ProcessChannel] = set()

    async def start(self, request: ProcessRequest) -> SandboxProcess:
        """Start a process. Raises as :meth:`run` does."""
        channel = self._new_channel()
        start = self._start_frame(channel, request, has_input=True, runs_out=False)
        try:
            await self.connection.send_whole(start)
            await channel.wait_for(lambda: channel.started)
        except BaseException:
            await to_the_end(self._close(channel))
            raise
        if channel.refusal is not None:
            self._forget(channel)
            raise failure_of(channel.refusal, request, self._limits)
        return SandboxProcess(channel, request, self._limits, self._close)

    async def run(
        self, request: ProcessRequest, input: Input | None = None, on_output: OutputCallback | None = None
    ) -> ProcessResult:
        """Run a process to its end; all that it leaves running ends with it, too.

        Raises:
            subprocess.TimeoutExpired: If it does not end within its time.
            OSError: If it cannot be started: a ``FileNotFoundError`` without such a program or directory.
            SandboxLostError: If the sandbox ends meanwhile.
        """
        channel = self._new_channel()
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
                await to_the_end(self._close(channel))
        if channel.refusal is not None:
            raise failure_of(channel.refusal, request, self._limits)
        return self._result(channel, request, newest.output())

    def _new_channel(self) -> ProcessChannel:
        connection = self.connection
        if len(connection.processes) >= MAX_PROCESSES:
            raise BlockingIOError(
                errno.EAGAIN, f"there may be {MAX_PROCESSES} processes in a sandbox at a time"
            )
        channel = ProcessChannel(connection, connection.next_process)
        connection.processes[channel.number] = channel
        self._channels.add(channel)
        if self.quota is not None and self._watching is None:
            self._watching = asyncio.create_task(self._watch(self.quota))
        connection.next_process += 1
        return channel

    def _start_frame(
        self, channel: ProcessChannel, request: ProcessRequest, *, has_input: bool, runs_out: bool
    ) -> bytes:
        if self._home:
            request = replace(request, cwd=os.path.join(self._home, request.cwd or ""))
        content = request.encoded(has_input=has_input, runs_out=runs_out, apart=self._apart)
        if len(content) > MAX_START_BYTES:
            self._forget(channel)
            raise OSError(errno.E2BIG, os.strerror(errno.E2BIG), request.args[0])
        return channel.request(Kind.START, content)

    def _forget(self, channel: ProcessChannel) -> None:
        self.connection.processes.pop(channel.number, None)
        self._channels.discard(channel)
        if not self._channels and self._watching is not None:
            self._watching.cancel()
            self._watching = None
        channel.is_over = True
        channel.wake()

    async def _close(self, channel: ProcessChannel) -> None:
        """End a process with all that it has started. Ends the sandbox if that is not possible."""
        connection = self.connection
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                if connection.alive:
                    await channel.send(Kind.CLOSE)
                    # nothing is left of it either if the sandbox is lost
                    await channel.wait_until(lambda: channel.closed or channel.refusal is not None)
        except TimeoutError:
            await connection.end("a process in it did not end")
        finally:
            self._forget(channel)

    async def _watch(self, quota: GrowthLimit) -> None:
        while True:
            await asyncio.sleep(quota.pause)
            if (exceeded := await quota.check()) is None:
                continue
            # which of them has added so much is not known
            for channel in [*self._channels]:
                channel.limit = limit_sentence(Cause.DISK, exceeded)
                with suppress(SandboxLostError):
                    await channel.send(Kind.SIGNAL, bytes([KILL_TREE]))

    async def close(self) -> None:
        """End all processes that were started here."""
        for channel in [*self._channels]:
            await to_the_end(self._close(channel))

    def _result(
        self, channel: ProcessChannel, request: ProcessRequest, output: ProcessOutput
    ) -> ProcessResult:
        ended, args = channel.exit, request.args
        assert ended is not None, "its end comes before the last of its output"
        if ended.timed_out:
            raise subprocess.TimeoutExpired(args, request.timeout or 0.0, output.stdout, output.stderr)
        return ProcessResult(args, ended.code, output, limit_of(channel, self._limits, output))


async def _collect(
    channel: ProcessChannel, ask: bytes, newest: NewestOutput, on_output: OutputCallback | None
) -> None:
    """Read all that a process writes, after the first question for it. Returns at once if the process was refused."""
    while True:
        await channel.wait_for(lambda: bool(channel.progress) or channel.refusal is not None)
        if channel.refusal is not None:
            return
        output, has_ended = channel.take()
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
