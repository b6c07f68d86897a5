"""Processes as effects: what a dispatcher's interceptors record of them, and how they answer in their place."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from subprocess import TimeoutExpired

from pydantic import JsonValue

from codeact_team.core.aio import FairLock, is_being_cancelled, to_the_end
from codeact_team.core.effects import Dispatcher, perform
from codeact_team.core.process_effects import (
    ProcessEffect,
    ProcessFailure,
    ProcessJob,
    ProcessOutcome,
    ProcessRun,
)
from codeact_team.errors import RecordedError, SandboxError, SandboxLostError
from codeact_team.sandbox.processes import (
    Input,
    NewestOutput,
    OutputCallback,
    ProcessOutput,
    ProcessRequest,
    ProcessResult,
    StreamName,
    pass_on,
)
from codeact_team.session.process_channel import ProcessTransport
from codeact_team.session.processes import ProcessServer, SandboxProcess
from codeact_team.session.protocol import ExitedFrame, Kind, Wait

Serve = Callable[[], Awaitable[ProcessServer]]
"""Starts the sandbox if it does not run, and returns what starts processes in it."""


def _settings_of(request: ProcessRequest) -> dict[str, JsonValue]:
    return {
        "argv": [*request.args],
        "cwd": request.directory,
        "timeout": request.timeout,
        "stderr": request.stderr,
        "output_limit": request.output_limit,
        "user": request.user,
        "terminal": None if request.terminal is None else [*request.terminal],
    }


async def _perform(
    effect: ProcessEffect, do: Callable[[], Awaitable[ProcessOutcome]], dispatcher: Dispatcher
) -> ProcessOutcome:
    try:
        return await perform(effect, do, dispatcher)
    except RecordedError as error:
        # an effect of this kind fails only where the sandbox cannot start
        raise SandboxError(str(error)) from error


class _Raised:
    """Keeps the exception of a process, which is an outcome for those who record it, until its caller gets it.

    Args:
        effect: The process.
    """

    def __init__(self, effect: ProcessEffect) -> None:
        self._effect = effect
        self._error: Exception | None = None
        self._program_error: Exception | None = None
        """The exception of the program's own part of a run, which says nothing of the process."""

    def outcome(self, error: Exception) -> ProcessOutcome:
        """The outcome of a process that has raised an exception."""
        self._error = error
        if error is not self._program_error:
            match error:
                case TimeoutExpired():
                    return ProcessOutcome(
                        stdout=error.stdout or b"", stderr=error.stderr or b"", timed_out=True
                    )
                case OSError() | LookupError() | SandboxLostError():
                    return ProcessOutcome(failure=ProcessFailure.of(error))
                case _:
                    pass
        return self._effect.unknown()

    def check(self, outcome: ProcessOutcome) -> None:
        """Raise the exception of a process, or the recorded one."""
        if self._error is not None:
            raise self._error
        if outcome.failure is not None:
            raise outcome.failure.exception()

    def noted_in(self, on_output: OutputCallback) -> OutputCallback:
        """The callback of a program, whose exceptions are noted."""

        async def forward(stream: StreamName, data: bytes) -> None:
            try:
                await on_output(stream, data)
            except Exception as error:
                self._program_error = error
                raise

        return forward

    async def noted_of(self, input: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
        """The input of a program, whose exceptions are noted."""
        try:
            async for piece in input:
                yield piece
        except Exception as error:
            self._program_error = error
            raise


async def run_recorded(
    executor: object,
    serve: Serve,
    request: ProcessRequest,
    input: Input | None,
    on_output: OutputCallback | None,
    dispatcher: Dispatcher,
) -> ProcessResult:
    """Run a process to its end, as an effect. Raises as without one, and a ``SandboxError`` if its end is not known.

    Where its outcome is answered, ``on_output`` gets the output in one piece.
    """
    known_input = None if isinstance(input, AsyncIterable) else input
    effect = ProcessRun(executor, _settings_of(request), request.env, known_input)
    raised, is_answered = _Raised(effect), True

    async def do() -> ProcessOutcome:
        nonlocal is_answered
        is_answered = False
        try:
            server = await serve()
        except LookupError as error:
            return raised.outcome(error)
        try:
            result = await server.run(
                request,
                raised.noted_of(input) if isinstance(input, AsyncIterable) else input,
                None if on_output is None else raised.noted_in(on_output),
            )
        except Exception as error:
            return raised.outcome(error)
        return ProcessOutcome(
            result.returncode,
            result.stdout,
            result.stderr,
            result.stdout_omitted,
            result.stderr_omitted,
            result.limit,
        )

    outcome = await _perform(effect, do, dispatcher)
    raised.check(outcome)
    output = _output_of(outcome)
    if is_answered and on_output is not None:
        await pass_on(output, on_output)
    args = request.args
    if outcome.timed_out:
        raise TimeoutExpired(args, request.timeout or 0.0, output.stdout, output.stderr)
    assert outcome.returncode is not None, "it has come to its end"
    return ProcessResult(args, outcome.returncode, output, outcome.limit)


def _output_of(outcome: ProcessOutcome) -> ProcessOutput:
    return ProcessOutput(outcome.stdout, outcome.stderr, outcome.stdout_omitted, outcome.stderr_omitted)


class Jobs:
    """The processes of an executor that are effects from their start to their end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[ProcessOutcome]] = set()

    async def start(
        self, executor: object, serve: Serve, request: ProcessRequest, dispatcher: Dispatcher
    ) -> SandboxProcess:
        """Start a process. Raises as without an effect.

        Where its end is not known, this raises a ``SandboxError``: a program can then decide whether it starts the process
        once more, before it works with it.
        """
        effect = ProcessJob(executor, _settings_of(request), request.env)
        raised = _Raised(effect)
        started: asyncio.Future[_RecordedProcess] = asyncio.get_running_loop().create_future()

        async def do() -> ProcessOutcome:
            try:
                server = await serve()
            except LookupError as error:
                return raised.outcome(error)
            try:
                process = await server.open(request)
            except Exception as error:
                return raised.outcome(error)
            recorded = _RecordedProcess(process, request.output_limit, task)
            started.set_result(recorded)
            return await recorded.outlive()

        task = asyncio.create_task(_perform(effect, do, dispatcher))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            await asyncio.wait({task, started}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            await to_the_end(asyncio.wait({task}))
            raise
        if started.done():
            return SandboxProcess(started.result())
        outcome = task.result()
        raised.check(outcome)
        return SandboxProcess(_AnsweredProcess(request.args, outcome))

    async def settled(self) -> None:
        """Wait until the ends of all that have ended with the sandbox are recorded."""
        loop = asyncio.get_running_loop()
        # another loop has ended with its own
        if here := {task for task in self._tasks if task.get_loop() is loop}:
            await asyncio.wait(here)


class _RecordedProcess:
    """A transport of a process whose life is an effect. Nobody learns of its end before that is recorded.

    Args:
        process: The transport of the process itself.
        limit: How many bytes of each stream are recorded.
        life: The task that performs the effect.
    """

    def __init__(self, process: ProcessTransport, limit: int, life: asyncio.Task[ProcessOutcome]) -> None:
        self.args = process.args
        self._process = process
        self._life = life
        self._newest = NewestOutput(limit)
        self._unread: deque[tuple[ProcessOutput, bool]] = deque()
        """Output that was taken from the process when it ended."""
        self._turns = FairLock()
        """Held while output is read."""
        self._was_read = self._is_closed = self._is_cut_off = False

    async def outlive(self) -> ProcessOutcome:
        """Wait until the process has ended, or is closed. Its own task does that.

        Raises:
            CancelledError: If it was closed as its program was cancelled: its end says nothing then.
        """
        process, failure = self._process, None
        try:
            await process.wait()
            if not self._is_closed:
                async with self._turns:
                    while not self._was_read:
                        self._unread.append(await self._next_output(Wait.FOR_OUTPUT))
        except SandboxLostError as error:
            failure = ProcessFailure.of(error)
        except ValueError:
            # its handle was closed, or its executor restarted
            pass
        except asyncio.CancelledError:
            await process.close()
            raise
        if self._is_cut_off:
            raise asyncio.CancelledError
        output, ended = self._newest.output(), process.exit
        return ProcessOutcome(
            None if ended is None else ended.code,
            output.stdout,
            output.stderr,
            output.stdout_omitted,
            output.stderr_omitted,
            process.limit,
            timed_out=ended is not None and ended.timed_out,
            failure=failure,
        )

    async def _next_output(self, wait: Wait) -> tuple[ProcessOutput, bool]:
        output, self._was_read = await self._process.read(wait)
        self._newest.add(output)
        return output, self._was_read

    async def _recorded(self) -> None:
        await asyncio.wait({self._life})
        if not self._life.cancelled():
            # such as that it could not be recorded
            self._life.result()

    @property
    def exit(self) -> ExitedFrame | None:
        return self._process.exit if self._life.done() else None

    @property
    def limit(self) -> str | None:
        return self._process.limit if self._life.done() else None

    @property
    def has_left(self) -> bool:
        return self._process.has_left

    async def read(self, wait: Wait) -> tuple[ProcessOutput, bool]:
        async with self._turns:
            output, is_last = self._unread.popleft() if self._unread else await self._next_output(wait)
        if is_last:
            await self._recorded()
        return output, is_last

    async def write(self, data: bytes) -> None:
        await self._process.write(data)

    async def send(self, kind: Kind, *payload: bytes) -> None:
        await self._process.send(kind, *payload)

    async def poll(self) -> None:
        await self._process.poll()
        if self._process.exit is not None:
            await self._recorded()

    async def wait(self) -> None:
        await self._process.wait()
        await self._recorded()

    async def close(self) -> None:
        self._is_closed, self._is_cut_off = True, is_being_cancelled() and not self._life.done()
        await self._process.close()
        await to_the_end(self._recorded())


class _AnsweredProcess:
    """A transport of a process that has run before: its output comes at once, and then its end. It takes no input, and no signals.

    Args:
        args: Its arguments.
        outcome: What is recorded of it.
    """

    def __init__(self, args: list[str], outcome: ProcessOutcome) -> None:
        self.args = args
        self.limit = outcome.limit
        self.has_left = False
        code = outcome.returncode
        self.exit = None if code is None else ExitedFrame(code, outcome.timed_out, False, None, None, None)
        self._output = _output_of(outcome)

    async def read(self, wait: Wait) -> tuple[ProcessOutput, bool]:
        output, self._output = self._output, ProcessOutput()
        return output, not output

    async def write(self, data: bytes) -> None:
        pass

    async def send(self, kind: Kind, *payload: bytes) -> None:
        pass

    async def poll(self) -> None:
        pass

    async def wait(self) -> None:
        if self.exit is None:
            raise SandboxError(f"the process {self.args[0]!r} was closed before it had ended")

    async def close(self) -> None:
        pass
