"""How a driver reaches its workers: in its own process, or in processes of their own, by frames of JSON over pipes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict
from typing import Any, Protocol

from codeact_team.aio import to_the_end
from codeact_team.batch.host import Host, load
from codeact_team.batch.job_configs import WorkerSettings
from codeact_team.batch.worker import Worker
from codeact_team.errors import CodeActTeamError

_GRACE = 20.0
"""Seconds that a worker gets to end in order."""


class WorkerLostError(Exception):
    """A worker has died, with all that it was doing."""


class Link(Protocol):
    """A worker, for its driver."""

    @property
    def is_lost(self) -> bool:
        """Whether it is dead."""
        ...

    async def run(self, job: dict[str, Any]) -> dict[str, Any]:
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
        await link._ready.wait()
        return link

    async def run(self, job: dict[str, Any]) -> dict[str, Any]:
        return await self._worker.run(job)

    def stop(self) -> None:
        self._worker.stop()

    async def close(self) -> None:
        self._closed.set()
        await self._holding

    async def _hold(self) -> None:
        async with self._worker:
            self._ready.set()
            await self._closed.wait()


def frame(message: dict[str, Any]) -> bytes:
    """A message as it is sent: its length in four bytes, and JSON."""
    data = json.dumps(message).encode()
    return len(data).to_bytes(4, "big") + data


async def read_frame(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """The next message; ``None`` at the end, also in the middle of one."""
    try:
        size = int.from_bytes(await reader.readexactly(4), "big")
        return json.loads(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None


class ProcessLink:
    """A worker in a process of its own; made by :meth:`start`."""

    def __init__(self, process: Process, host: Host) -> None:
        self._process = process
        self._host = host
        self._jobs: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self.is_lost = False
        self._reading: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, settings: WorkerSettings, host: Host) -> ProcessLink:
        """Start one, and wait until it is ready.

        Raises:
            CodeActTeamError: If it does not start.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "codeact_team.batch.worker_process",
            stdin=PIPE,
            stdout=PIPE,
            # what a terminal tells its programs is for the driver, which stops its workers in order
            start_new_session=True,
        )
        link = cls(process, host)
        try:
            link._send({"settings": asdict(settings), "path": sys.path, "driver": os.getpid()})
            assert process.stdout is not None
            if await read_frame(process.stdout) is None:
                raise CodeActTeamError(
                    f"a worker process has ended before it was ready, with exit code {await process.wait()}"
                )
        except BaseException:
            await to_the_end(link.close())
            raise
        link._reading = asyncio.create_task(link._read(process.stdout))
        return link

    async def run(self, job: dict[str, Any]) -> dict[str, Any]:
        if self.is_lost:
            raise WorkerLostError
        done = self._jobs[job["name"]] = asyncio.get_running_loop().create_future()
        self._send({"run": job})
        return await done

    def stop(self) -> None:
        self._send({"stop": True})

    async def close(self) -> None:
        self._lose()
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _GRACE)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        if self._reading is not None:
            await self._reading
        with suppress(BrokenPipeError, ConnectionError):
            await self._process.stdin.wait_closed()

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        # what is sent to the dead is lost; that they are is read
        if not self._process.stdin.is_closing():
            self._process.stdin.write(frame(message))

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while (message := await read_frame(stream)) is not None:
            if (name := message.get("done")) is not None:
                if (job := self._jobs.pop(name, None)) is not None and not job.done():
                    job.set_result(message["result"])
            elif "admit" in message:
                task = asyncio.create_task(self._admit(message["admit"], message["job"]))
                self._asking.add(task)
                task.add_done_callback(self._asking.discard)
            else:
                self._host.tell(message["job"], load(message["told"]))
        self._lose()

    async def _admit(self, number: int, job: str) -> None:
        refusal = await self._host.admit(job)
        self._send({"admitted": number, "job": job, "refusal": refusal})

    def _lose(self) -> None:
        self.is_lost = True
        for task in self._asking:
            task.cancel()
        jobs, self._jobs = self._jobs, {}
        for job in jobs.values():
            if not job.done():
                job.set_exception(WorkerLostError())


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
