"""How a driver reaches its workers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from codeact_team.batch.job_configs import WorkerSettings
from codeact_team.batch.leases import Lease
from codeact_team.batch.throttle import Host
from codeact_team.batch.worker import Worker
from codeact_team.core.aio import to_the_end


class WorkerLostError(Exception):
    """A worker has died, with all that it was doing; the text says how."""


class Link(Protocol):
    """A worker, for its driver."""

    @property
    def is_lost(self) -> bool:
        """Whether it is dead."""
        ...

    async def run(self, job: dict[str, Any], lease: Lease) -> dict[str, Any]:
        """Run a job; see :meth:`Worker.run`.

        Raises:
            WorkerLostError: If the worker dies meanwhile.
        """
        ...

    def stop(self) -> None:
        """Stop all its jobs, which end in order."""
        ...

    async def close(self) -> None:
        """End the worker."""
        ...


class LocalLink:
    """A worker in this process; made by :meth:`start`."""

    is_lost = False

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._ready = asyncio.Event()
        self._closed = asyncio.Event()
        # a task of its own, as it is closed by another than has opened it
        self._holding = asyncio.create_task(self._hold())

    @classmethod
    async def start(cls, settings: WorkerSettings, host: Host) -> LocalLink:
        """Start one."""
        link = cls(Worker(settings, host))
        try:
            await link._ready.wait()
        except BaseException:
            await to_the_end(link.close())
            raise
        return link

    async def run(self, job: dict[str, Any], lease: Lease) -> dict[str, Any]:
        return await self._worker.run(job, lease)

    def stop(self) -> None:
        self._worker.stop()

    async def close(self) -> None:
        self._closed.set()
        await self._holding

    async def _hold(self) -> None:
        async with self._worker:
            self._ready.set()
            await self._closed.wait()


class Slot:
    """The place of a worker: one that dies is replaced when it is needed.

    Args:
        start: Starts one.
    """

    def __init__(self, start: Callable[[], Awaitable[Link]]) -> None:
        self._start = start
        self._link: Link | None = None
        self._lock = asyncio.Lock()

    async def link(self) -> Link:
        """The worker that is there now."""
        async with self._lock:
            if self._link is not None and self._link.is_lost:
                await self._link.close()
                self._link = None
            if self._link is None:
                self._link = await self._start()
            return self._link

    def stop(self) -> None:
        """Stop all that its worker does."""
        if self._link is not None:
            self._link.stop()

    async def close(self) -> None:
        """End its worker."""
        if self._link is not None:
            await self._link.close()
