"""Programs that run in the sandbox of an executor, next to its blocks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from signal import SIGINT
from subprocess import CalledProcessError

from typing_extensions import Unpack

from codeact_team.core.aio import Turns
from codeact_team.core.effects import current_dispatcher
from codeact_team.errors import SandboxError, SandboxLostError
from codeact_team.executors.recorded_processes import Jobs, run_recorded
from codeact_team.sandbox.base import NO_SUCH_USER, Exit, Process, Sandbox
from codeact_team.sandbox.processes import (
    Input,
    OutputCallback,
    ProcessOptions,
    ProcessRequest,
    ProcessResult,
    TerminalSize,
)
from codeact_team.session.connection import SupervisorConnection
from codeact_team.session.processes import ProcessServer, SandboxProcess

_BLOCK_OUTPUT = 16 << 20
"""How many bytes of a block's output wait for their reader."""


class ProcessServers:
    """What starts processes in a sandbox, apart from that of a session: supervisors that run no blocks, one for each user."""

    def __init__(self) -> None:
        self._servers: dict[str | None, ProcessServer] = {}
        self._turns = Turns()

    def running(self, user: str | None) -> ProcessServer | None:
        """That of a user, if it runs."""
        server = self._servers.get(user)
        return server if server is not None and server.connection.alive else None

    async def get(self, user: str | None, sandbox: Sandbox) -> ProcessServer:
        """That of a user, ``None`` for that of the code, who may run no other program meanwhile.

        Raises:
            LookupError: If no such user exists.
            SandboxError: If it cannot start, for example because it has no Python.
        """
        async with self._turns:
            if (server := self.running(user)) is not None:
                return server
            connection = SupervisorConnection(sandbox, only_processes=True, user=user)
            try:
                await connection.open()
            except SandboxError as error:
                if NO_SUCH_USER in str(error):
                    raise LookupError(f"the sandbox has no user {user!r}") from error
                raise
            server = self._servers[user] = ProcessServer(connection, sandbox)
            return server

    async def close(self) -> None:
        """End them, with all that they have started."""
        servers, self._servers = self._servers, {}
        for server in servers.values():
            await server.connection.end("it was closed")


class _BlockProcess(Process):
    """A process that runs a block."""

    def __init__(self, process: SandboxProcess) -> None:
        self._process = process

    async def read(self) -> bytes:
        try:
            output = await self._process.read()
        except SandboxLostError:
            # how it was lost is its end
            return b""
        omitted = output.stdout_omitted
        return (f"\n[{omitted} bytes of output are left out]\n".encode() if omitted else b"") + output.stdout

    async def write(self, data: bytes) -> None:
        await self._process.write(data)

    async def close_stdin(self) -> None:
        await self._process.close_stdin()

    async def wait(self) -> Exit:
        return await self._process.exit()

    async def aclose(self) -> None:
        await self._process.aclose()


class BlockSandbox:
    """A sandbox in which processes run, for blocks as processes among them: it interrupts and kills the present block only."""

    def __init__(self, sandbox: Sandbox, server: ProcessServer) -> None:
        self._sandbox = sandbox
        self._server = server
        self._block: SandboxProcess | None = None

    @property
    def running(self) -> bool:
        return self._sandbox.running

    @property
    def private(self) -> str:
        return self._sandbox.private

    async def spawn(self, argv: Sequence[str]) -> Process:
        request = ProcessRequest(argv, stderr="together", output_limit=_BLOCK_OUTPUT)
        self._block = await self._server.start(request)
        return _BlockProcess(self._block)

    async def interrupt(self) -> None:
        if self._block is not None:
            await self._block.send_signal(SIGINT)

    async def kill(self) -> None:
        if self._block is not None:
            await self._block.kill()

    async def stop(self) -> None:
        await self._sandbox.stop()


class Processes:
    """Runs programs in the sandbox of an executor, which starts on first use: several at once, and next to blocks.

    They start in the workspace, with the variables of the sandbox, and share its limits with the code; each takes one process
    more, which ends whatever it leaves behind. They are no part of the interpreter's state: if that is interrupted or lost, they
    run on. They end when the executor is restarted or stopped.

    Each is an effect of the current dispatcher, else of the one that was current when the executor was made. In a run that is
    recorded and resumed, a process that had ended is answered from the journal and does not run again. The
    effects of one that had not ended are unknown: :meth:`run` and :meth:`start` raise a ``SandboxError`` that says so.

    Args:
        executor: The executor.
        server: Returns what starts processes as a user of the sandbox, ``None`` for that of the code.
    """

    def __init__(self, executor: object, server: Callable[[str | None], Awaitable[ProcessServer]]) -> None:
        self._executor = executor
        self._server = server
        self._dispatcher = current_dispatcher()
        self._jobs = Jobs()

    async def run(
        self,
        argv: Sequence[str],
        *,
        input: Input | None = None,
        on_output: OutputCallback | None = None,
        check: bool = False,
        **options: Unpack[ProcessOptions],
    ) -> ProcessResult:
        """Run a program to its end, as :func:`subprocess.run` does; its remaining children end with it.

        Args:
            argv: The program and its arguments. No shell reads them: ``["sh", "-c", code]`` runs one.
            input: The content of stdin: bytes, or pieces as they come. Default: nothing.
            on_output: Awaited with ``"stdout"`` or ``"stderr"``, and each piece of output as it comes. An exception of it
                ends the process.
            check: Whether an exit code other than 0 is an error.
            options: See :class:`~codeact_team.sandbox.processes.ProcessOptions`.

        Raises:
            subprocess.TimeoutExpired: If its time was over. It has the output so far.
            subprocess.CalledProcessError: With ``check``, if it has failed.
            OSError: If it cannot be started: a ``FileNotFoundError`` for an unknown program or directory, a
                ``NotADirectoryError``, a ``PermissionError``, a ``BlockingIOError`` for too many processes.
            ValueError: If an argument cannot be passed on, such as one with a null byte.
            LookupError: If no such user exists.
            SandboxError: If the sandbox cannot start, has no Python, or ends meanwhile; or if the run was resumed, and had been
                interrupted while the process ran.
        """
        request = ProcessRequest(argv, **options)
        if (dispatcher := current_dispatcher() or self._dispatcher) is None:
            result = await (await self._server(request.user)).run(request, input, on_output)
        else:
            serve = partial(self._server, request.user)
            result = await run_recorded(self._executor, serve, request, input, on_output, dispatcher)
        if check and result.returncode:
            raise CalledProcessError(result.returncode, result.args, result.stdout, result.stderr)
        return result

    async def start(
        self,
        argv: Sequence[str],
        *,
        terminal: TerminalSize | None = None,
        **options: Unpack[ProcessOptions],
    ) -> SandboxProcess:
        """Start a program, which runs on while other things happen. Raises as :meth:`run` does.

        Args:
            argv: The program and its arguments, as for :meth:`run`.
            terminal: The size of a terminal for its stdin and output, which then comes as stdout. Default: three pipes.
            options: As for :meth:`run`.

        Returns:
            The process. It ends, with all that it has started, when that is closed.
        """
        request = ProcessRequest(argv, terminal=terminal, **options)
        if (dispatcher := current_dispatcher() or self._dispatcher) is None:
            return await (await self._server(request.user)).start(request)
        return await self._jobs.start(
            self._executor, partial(self._server, request.user), request, dispatcher
        )

    async def settled(self) -> None:
        """Wait until what has ended with the sandbox is recorded. For the executor."""
        await self._jobs.settled()
