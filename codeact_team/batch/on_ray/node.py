"""The actor that is a worker's place on a node: it starts the worker's process there, and passes on what that reads and writes.

The worker has a process of its own, as on the driver's machine: what Ray does in the process of an actor, such as its threads,
signals and printing, does not touch sandboxes. It ends with the actor, which Ray ends with its driver, or with its node.
"""

from __future__ import annotations

from asyncio.subprocess import Process
from collections.abc import AsyncGenerator
from contextlib import suppress
from importlib.metadata import version

from ray.util import get_node_ip_address  # pyright: ignore[reportUnknownVariableType]

from codeact_team.batch.on_ray.frames import PIECE
from codeact_team.batch.processes import end_program, start_program


class WorkerPlace:
    """Starts a worker."""

    def __init__(self) -> None:
        self._process: Process | None = None

    async def start(self) -> tuple[str, str]:
        """Start it; the version of this package on the node, and the address of that."""
        self._process = await start_program("codeact_team.batch.worker_process")
        return version("codeact-team"), str(get_node_ip_address())  # pyright: ignore[reportUnknownArgumentType]

    async def write(self, data: bytes) -> None:
        """Let the worker read something. Does nothing if it is dead; that is seen by :meth:`read`."""
        assert self._process is not None, "it was started"
        assert self._process.stdin is not None
        with suppress(ConnectionError):
            self._process.stdin.write(data)
            await self._process.stdin.drain()

    async def read(self) -> AsyncGenerator[bytes, None]:
        """What the worker writes, until its end."""
        assert self._process is not None, "it was started"
        assert self._process.stdout is not None
        while data := await self._process.stdout.read(PIECE):
            yield data

    async def end(self) -> None:
        """End the worker."""
        if self._process is not None:
            await end_program(self._process)
