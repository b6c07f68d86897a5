"""Where the workers of a batch run: in this process, in processes of this machine, or on the nodes of a Ray cluster."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from itertools import count
from typing import Self

from codeact_team.batch.remote_worker import NodeConnection, RemoteWorker, remote_worker
from codeact_team.batch.settings import WorkerSettings
from codeact_team.batch.throttle import DriverInterface
from codeact_team.batch.worker import Worker
from codeact_team.core.aio import to_the_end
from codeact_team.core.child_process import ChildProcess, ProcessLostError
from codeact_team.core.shipped import how_to_install
from codeact_team.errors import CodeActTeamError, SettingError

AnyWorker = Worker | RemoteWorker
"""A worker, as the driver calls it: ``run``, ``stop`` and ``is_lost``."""
_TASKS_A_WORKER = 4
"""Fewer are not worth the start of a process, which imports for a second or two."""


class LocalEngine:
    """Starts workers on this machine: a single one in this process, several in processes of their own."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *failure: object) -> None:
        pass

    def workers(self, jobs: int) -> int:
        # the processors that this process may use
        processors = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
        return min(processors, -(-jobs // _TASKS_A_WORKER) or 1)

    @asynccontextmanager
    async def worker(
        self, settings: WorkerSettings, driver: DriverInterface, *, is_only: bool
    ) -> AsyncGenerator[AnyWorker]:
        if is_only:
            async with Worker(settings, driver) as here:
                yield here
        else:
            process = await ChildProcess.start("codeact_team.batch.worker_process")
            async with remote_worker(process, settings, driver) as there:
                yield there


_INSTALL = f"tasks on a Ray cluster need ray: {how_to_install('ray')}. With `--address local` they need no other machine"
_HOW_TO_START = (
    "`--address local` starts one of this machine alone, for this batch; or start one by `ray start --head` and run this on one "
    "of its nodes, or name one by --address"
)
_NONE_HERE = "Could not find any running"
"""Ray's words if this machine is no node of a cluster."""
_AUTO = "auto"
_PATIENCE = 5.0
"""Seconds in which the head of a cluster takes a connection; Ray itself tries for two minutes."""
_CONNECTING = 120.0
"""Seconds in which a cluster is found, or one of this machine is started."""


class RayEngine:
    """Starts workers on the nodes of a Ray cluster, through the gateway. Ray chooses the nodes.

    The address is as in :class:`BatchSettings`.

    Raises:
        SettingError: If Ray is not installed.
    """

    def __init__(self, address: str | None) -> None:
        if not _has_ray():
            raise SettingError(_INSTALL)
        self._address = address or os.environ.get("RAY_ADDRESS") or _AUTO
        self._numbers = count(1)
        self._connections: dict[int, NodeConnection] = {}
        self._nodes = 0
        self._is_lost = False

    def workers(self, jobs: int) -> int:
        """One for each node."""
        return self._nodes

    @asynccontextmanager
    async def worker(
        self, settings: WorkerSettings, driver: DriverInterface, *, is_only: bool
    ) -> AsyncGenerator[AnyWorker]:
        if self._is_lost:
            raise CodeActTeamError(
                f"the connection to the Ray cluster at {self._address} is lost: once the cluster is back, the same command goes on"
            )
        number = next(self._numbers)
        connection = self._connections[number] = NodeConnection(number, self._gateway)
        async with remote_worker(connection, settings, driver) as worker:
            yield worker

    async def __aenter__(self) -> Self:
        await _refuse_unreachable(self._address)
        self._gateway = await ChildProcess.start("codeact_team.batch.ray_gateway")
        try:
            self._nodes = await self._connect()
        except BaseException:
            self._gateway.kill()
            await to_the_end(self._gateway.close())
            raise
        self._reading = asyncio.create_task(self._read())
        return self

    async def __aexit__(self, *failure: object) -> None:
        await to_the_end(self._gateway.close())
        await to_the_end(self._reading)

    async def _connect(self) -> int:
        """Connect the gateway to the cluster; how many nodes take workers.

        Raises:
            SettingError: If there is no such cluster, or none of its nodes does.
        """
        self._gateway.send({"address": self._address})
        try:
            answer = await asyncio.wait_for(self._gateway.receive(), _CONNECTING)
            reason = answer.get("failed")
        except (TimeoutError, CodeActTeamError, ProcessLostError):
            answer, reason = {}, "it does not answer"
        if reason is not None:
            if self._address == _AUTO and _NONE_HERE in reason:
                raise SettingError(f"this machine is not a node of a Ray cluster: {_HOW_TO_START}")
            reason = " ".join(reason.split()).rstrip(".;")
            raise SettingError(
                f"there is no Ray cluster at {self._address} that this machine can join ({reason}): {_HOW_TO_START}. One that "
                "asks for a token needs RAY_AUTH_MODE=token on this machine, too"
            )
        if not (nodes := answer["connected"]):
            raise SettingError(f"the Ray cluster at {self._address} has no node with a processor for tasks")
        return nodes

    async def _read(self) -> None:
        """Hand the messages of the gateway to the connections they belong to, until it ends."""
        try:
            while True:
                message = await self._gateway.receive()
                self._connections[message["worker"]].deliver(message)
                if "ended" in message:
                    del self._connections[message["worker"]]
        except ProcessLostError:
            pass
        finally:
            # also where this is cancelled: a worker that is being closed waits for its end
            self._is_lost = True
            for connection in self._connections.values():
                connection.deliver({"lost": "the connection to the cluster was lost"})
                connection.deliver({"ended": True})


def _has_ray() -> bool:
    # it is not imported here, as that would change this process: see the gateway
    try:
        return find_spec("ray") is not None
    except ValueError:
        return False


async def _refuse_unreachable(address: str) -> None:
    """Raise a SettingError for an address where no process listens."""
    if address in (_AUTO, "local"):
        return
    if "://" in address:
        raise SettingError(
            f"{address}: workers cannot be reached through a client connection; run this on a node of the cluster, and "
            "give an address without ://"
        )
    name, _, port = address.rpartition(":")
    if not name or not port.isdecimal():
        raise SettingError(f"{address!r} is not the address of a Ray cluster, such as 10.0.0.1:6379")
    try:
        async with asyncio.timeout(_PATIENCE):
            _, writer = await asyncio.open_connection(name.strip("[]"), int(port))
        writer.close()
        await writer.wait_closed()
    except (OSError, OverflowError, TimeoutError) as error:
        raise SettingError(
            f"there is no Ray cluster at {address} ({error or 'no answer'}): {_HOW_TO_START}"
        ) from None


Engine = LocalEngine | RayEngine
"""Starts workers. An asynchronous context manager, within which they live.

``workers`` is the default number of them for a number of jobs. ``worker`` runs one as an asynchronous context manager,
given the settings, the driver, and whether it is the only one. It raises ``ProcessLostError`` if the worker dies before it
is ready, and ``CodeActTeamError`` if none can run there.
"""


def engine_of(name: str, address: str | None) -> Engine:
    """The engine of a name.

    Raises:
        SettingError: If there is none of that name, it is not installed, or it has no address.
    """
    match name:
        case "local":
            if address is not None:
                raise SettingError("an address is for a Ray cluster only: give --engine ray, too")
            return LocalEngine()
        case "ray":
            return RayEngine(address)
        case _:
            raise SettingError(f"engine: {name!r} is not one of local, ray")
