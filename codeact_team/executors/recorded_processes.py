"""Processes as effects: what a dispatcher's interceptors record of them, and how they answer in their place."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from subprocess import TimeoutExpired

from pydantic import JsonValue

from codeact_team.core.aio import Turns, is_being_cancelled, to_the_end
from codeact_team.core.effects import Dispatcher, perform
from codeact_team.core.process_effects import (
    ProcessEffect,
    ProcessFailure,
    ProcessJob,
    ProcessOutcome,
    ProcessRun,
)
from codeact_team.errors import RecordedError, SandboxError, SandboxLostError
from codeact_team.sandbox.base import Exit
from codeact_team.sandbox.processes import (
    Input,
    NewestOutput,
    OutputCallback,
    ProcessOutput,
    ProcessRequest,
    ProcessResult,
    StreamName,
    TerminalSize,
    pass_on,
)
from codeact_team.session.processes import ProcessServer, SandboxProcess

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
        """What the program's own part of a run has raised: that says nothing of the process."""

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

        async def take(stream: StreamName, data: bytes) -> None:
            try:
                await on_output(stream, data)
            except Exception as error:
                self._program_error = error
                raise

        return take

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
        started: asyncio.Future[_RecordedJob] = asyncio.get_running_loop().create_future()

        async def do() -> ProcessOutcome:
            try:
                server = await serve()
            except LookupError as error:
                return raised.outcome(error)
            try:
                process = await server.start(request)
            except Exception as error:
                return raised.outcome(error)
            job = _RecordedJob(process, request.output_limit, task)
            started.set_result(job)
            return await job.outlive()

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
            return started.result()
        outcome = task.result()
        raised.check(outcome)
        return _AnsweredJob(request.args, outcome)

    async def settled(self) -> None:
        """Wait until the ends of all that have ended with the sandbox are recorded."""
        loop = asyncio.get_running_loop()
        # another loop has ended with its own
        if here := {task for task in self._tasks if task.get_loop() is loop}:
            await asyncio.wait(here)


class _RecordedJob(SandboxProcess):
    """A process whose life is an effect. Nobody learns of its end before that is recorded.

    Args:
        process: The process.
        limit: How many bytes of each stream are recorded.
        life: The task that performs the effect.
    """

    def __init__(self, process: SandboxProcess, limit: int, life: asyncio.Task[ProcessOutcome]) -> None:
        self.args = process.args
        self._process = process
        self._life = life
        self._newest = NewestOutput(limit)
        self._unread: deque[ProcessOutput] = deque()
        """Output that was taken from the process when it ended."""
        self._turns = Turns()
        """Held while output is read."""
        self._is_closed = self._is_cut_off = False

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
                    while output := await process.read():
                        self._newest.add(output)
                        self._unread.append(output)
        except SandboxLostError as error:
            failure = ProcessFailure.of(error)
        except ValueError:
            # its handle was closed, or its executor restarted
            pass
        except asyncio.CancelledError:
            await to_the_end(process.aclose())
            raise
        if self._is_cut_off:
            raise asyncio.CancelledError
        output = self._newest.output()
        return ProcessOutcome(
            process.returncode,
            output.stdout,
            output.stderr,
            output.stdout_omitted,
            output.stderr_omitted,
            process.limit,
            timed_out=process.timed_out,
            failure=failure,
        )

    async def _recorded(self) -> None:
        await asyncio.wait({self._life})
        if not self._life.cancelled():
            # such as that it could not be recorded
            self._life.result()

    @property
    def returncode(self) -> int | None:
        return self._process.returncode if self._life.done() else None

    @property
    def timed_out(self) -> bool:
        return self._process.timed_out if self._life.done() else False

    @property
    def limit(self) -> str | None:
        return self._process.limit if self._life.done() else None

    async def read(self) -> ProcessOutput:
        return await self._take(self._process.read)

    async def read_available(self) -> ProcessOutput:
        return await self._take(self._process.read_available)

    async def _take(self, read: Callable[[], Awaitable[ProcessOutput]]) -> ProcessOutput:
        async with self._turns:
            if self._unread and not self._is_closed:
                return self._unread.popleft()
            output = await read()
            self._newest.add(output)
        if not output and read == self._process.read:
            await self._recorded()
        return output

    async def write(self, data: bytes) -> None:
        await self._process.write(data)

    async def close_stdin(self) -> None:
        await self._process.close_stdin()

    async def poll(self) -> int | None:
        if await self._process.poll() is not None:
            await self._recorded()
        return self.returncode

    async def has_left(self) -> bool:
        return await self._process.has_left()

    async def wait(self) -> int:
        code = await self._process.wait()
        await self._recorded()
        return code

    async def exit(self) -> Exit:
        return await self._process.exit()

    async def send_signal(self, number: int) -> None:
        await self._process.send_signal(number)

    async def resize(self, size: TerminalSize) -> None:
        await self._process.resize(size)

    async def aclose(self) -> None:
        if not self._is_closed:
            self._is_closed, self._is_cut_off = True, is_being_cancelled() and not self._life.done()
            await to_the_end(self._process.aclose())
        await to_the_end(self._recorded())


class _AnsweredJob(SandboxProcess):
    """A process that has run before: its output comes at once, and then its end. It takes no input, and no signals.

    Args:
        args: Its arguments.
        outcome: What is recorded of it.
    """

    def __init__(self, args: list[str], outcome: ProcessOutcome) -> None:
        self.args = args
        self._outcome = outcome
        self._unread = _output_of(outcome)
        self._is_closed = False

    def _require_open(self) -> None:
        if self._is_closed:
            raise ValueError(f"the process {self.args[0]!r} is closed")

    @property
    def returncode(self) -> int | None:
        return self._outcome.returncode

    @property
    def timed_out(self) -> bool:
        return self._outcome.timed_out

    @property
    def limit(self) -> str | None:
        return self._outcome.limit

    async def read(self) -> ProcessOutput:
        return await self.read_available()

    async def read_available(self) -> ProcessOutput:
        self._require_open()
        output, self._unread = self._unread, ProcessOutput()
        return output

    async def write(self, data: bytes) -> None:
        self._require_open()

    async def close_stdin(self) -> None:
        self._require_open()

    async def poll(self) -> int | None:
        return self.returncode

    async def has_left(self) -> bool:
        return False

    async def wait(self) -> int:
        if self.returncode is None:
            raise SandboxError(f"the process {self.args[0]!r} was closed before it had ended")
        return self.returncode

    async def exit(self) -> Exit:
        code = await self.wait()
        return Exit(code if code >= 0 else 128 - code)

    async def send_signal(self, number: int) -> None:
        self._require_open()

    async def resize(self, size: TerminalSize) -> None:
        self._require_open()

    async def aclose(self) -> None:
        self._is_closed = True
