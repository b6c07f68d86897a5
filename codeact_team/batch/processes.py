"""Workers that are processes of this machine."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from signal import SIGKILL
from typing import Any

from codeact_team.batch.job_configs import WorkerSettings
from codeact_team.batch.links import WorkerLostError
from codeact_team.batch.messages import RemoteLink, frame
from codeact_team.batch.throttle import Host
from codeact_team.core.aio import to_the_end
from codeact_team.errors import CodeActTeamError
from codeact_team.sandbox.system.kernel import prctl

_PR_SET_PDEATHSIG = 1


def own_streams(*, quiet: bool = False) -> tuple[int, int]:
    """Standard input and output, as this program alone has them: what else reads and prints here does not reach them.

    Args:
        quiet: Whether nothing that is printed here is for a person, be it standard error.
    """
    incoming, outgoing = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    # what code prints here is no message
    os.dup2(nowhere, 0)
    if quiet:
        os.dup2(nowhere, 2)
    os.dup2(2, 1)
    os.close(nowhere)
    return incoming, outgoing


async def opened(incoming: int, outgoing: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """The streams for this event loop."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(incoming, "rb", 0))
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(outgoing, "wb", 0)
    )
    return reader, asyncio.StreamWriter(transport, protocol, None, loop)


def end_with_parent(place: dict[str, Any]) -> None:
    """Let this program end with the one that has started it, and import from where that does.

    Args:
        place: The first message.
    """
    if sys.platform == "linux":
        prctl(_PR_SET_PDEATHSIG, SIGKILL)
    if os.getppid() != place["parent"]:
        os._exit(1)
    sys.path[:] = place["path"]


GRACE = 20.0
"""Seconds that a worker gets to end in order."""


async def start_program(module: str, arguments: Sequence[str] = (), **settings: Any) -> Process:
    """Start a program of this package with pipes, which knows whose it is and imports from where this process does."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        module,
        *arguments,
        stdin=PIPE,
        stdout=PIPE,
        # what a terminal tells its programs is for the driver, which stops its workers in order
        start_new_session=True,
        **settings,
    )
    assert process.stdin is not None
    process.stdin.write(frame({"path": sys.path, "parent": os.getpid()}))
    return process


async def end_program(process: Process) -> None:
    """Let a program end whose input is at its end, and kill it if it does not."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        await asyncio.wait_for(process.wait(), GRACE)
    except TimeoutError:
        process.kill()
        await process.wait()
    with suppress(BrokenPipeError, ConnectionError):
        await process.stdin.wait_closed()


class ProcessLink(RemoteLink):
    """A worker in a process of its own; made by :meth:`start`."""

    def __init__(self, process: Process, host: Host, directory: Path) -> None:
        super().__init__(host, directory)
        self._process = process
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, settings: WorkerSettings, host: Host) -> ProcessLink:
        """Start one, and wait until it is ready.

        Raises:
            WorkerLostError: If it is killed meanwhile.
            CodeActTeamError: If it does not start.
        """
        process = await start_program("codeact_team.batch.worker_process")
        link = cls(process, host, Path(settings.directory))
        try:
            link._send({"begin": asdict(settings)})
            assert process.stdout is not None
            if not await link._is_ready(process.stdout):
                if (code := await process.wait()) < 0:
                    raise WorkerLostError(link._loss)
                raise CodeActTeamError(
                    f"a worker process has ended before it was ready, with exit code {code}"
                )
        except BaseException:
            await to_the_end(link.close())
            raise
        link._reading = asyncio.create_task(link._read(process.stdout))
        return link

    async def close(self) -> None:
        self._lose()
        await end_program(self._process)
        if self._reading is not None:
            await self._reading

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(frame(message))

    async def _drained(self) -> None:
        assert self._process.stdin is not None
        with suppress(ConnectionError):
            await self._process.stdin.drain()
