"""Programs that run in the sandbox of an executor, next to its blocks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from subprocess import CalledProcessError

from typing_extensions import Unpack

from codeact_team.core.aio import FairLock
from codeact_team.core.effects import current_dispatcher
from codeact_team.errors import SandboxError
from codeact_team.executors.recorded_processes import Jobs, run_recorded
from codeact_team.sandbox.base import NO_SUCH_USER, Sandbox
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


class ProcessServers:
    """The process servers of a sandbox beside the session's: supervisors that run no blocks, one for each user."""

    def __init__(self) -> None:
        self._servers: dict[str | None, ProcessServer] = {}
        self._turns = FairLock()

    def running(self, user: str | None) -> ProcessServer | None:
        """Return the server of a user, if it runs."""
        server = self._servers.get(user)
        return server if server is not None and server.connection.alive else None

    def loss_of(self, user: str | None) -> str | None:
        """The reason if the server of a user has ended."""
        server = self._servers.get(user)
        return None if server is None or (ended := server.connection.ending) is None else ended.lost

    async def get(self, user: str | None, sandbox: Sandbox) -> ProcessServer:
        """The process server of a user. Without one, of the user of the code, who may run no other program meanwhile.

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


class Processes:
    """Runs programs in the sandbox of an executor, which starts on first use: several at once, and next to blocks.

    They start in the workspace, with the variables of the sandbox, and share its limits with the code; each takes one process
    more, which ends whatever it leaves behind. They are no part of the interpreter's state: if that is interrupted or lost, they
    run on. They end when the executor is restarted or stopped.

    Each is an effect of the current dispatcher, else of the dispatcher that was current when the executor was made. In a run that is
    recorded and resumed, a process that had ended is answered from the journal and does not run again. The
    effects of one that had not ended are unknown: :meth:`run` and :meth:`start` raise a ``SandboxError`` that says so.

    Args:
        executor: The executor.
        server: Returns the process server of a user of the sandbox; ``None`` is the code's user.
    """

    def __init__(self, executor: object, server: Callable[[str | None], Awaitable[ProcessServer]]) -> None:
        self._executor = executor
        self._server = server
        self._dispatcher = current_dispatcher()
        self.jobs: Jobs = Jobs()
        """Those that are effects."""

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
        return await self.jobs.start(self._executor, partial(self._server, request.user), request, dispatcher)
