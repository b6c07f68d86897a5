"""What a driver and a worker elsewhere say to each other: frames of JSON over any stream of bytes in both directions.

To the worker go ``begin``, ``run`` with a ``lease``, ``answer`` and ``stop``; from it come ``ready`` or ``unfit``, ``ask``,
``told`` and ``done``. ``carried`` goes both ways: see :mod:`codeact_team.batch.carrying`.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from codeact_team.batch.carrying import Arrivals, pieces_of
from codeact_team.batch.host import Called, Host, Told, dump, load
from codeact_team.batch.leases import Lease
from codeact_team.batch.links import WorkerLostError
from codeact_team.errors import CodeActTeamError


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


class RemoteHost:
    """The driver, for a worker that is not in its process.

    Args:
        send: Sends it a message.
    """

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send
        self._numbers = count()
        self._asked: dict[int, asyncio.Future[Any]] = {}

    async def admit(self, job: str) -> str | None:
        return await self._ask({"ask": "admit", "job": job})

    async def holds(self, job: str, lease: str) -> bool:
        return await self._ask({"ask": "holds", "job": job, "lease": lease})

    def tell(self, job: str, told: Told) -> None:
        self._send({"job": job, "told": dump(told)})

    async def _ask(self, question: dict[str, Any]) -> Any:
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self._send({**question, "number": number})
        try:
            return await answer
        except asyncio.CancelledError:
            self._asked.pop(number, None)
            raise

    def answer(self, message: dict[str, Any]) -> None:
        """Take an answer."""
        asked = self._asked.pop(message["number"], None)
        if asked is not None and not asked.done():
            asked.set_result(message["answer"])
        elif message["to"] == "admit" and message["answer"] is None:
            # whoever has asked was stopped meanwhile
            self.tell(message["job"], Called())


class RemoteLink(ABC):
    """A worker that is not in this process; what carries the messages is up to those that inherit from this.

    Args:
        host: The driver.
        directory: That of the batch.
    """

    def __init__(self, host: Host, directory: Path) -> None:
        self._host = host
        self._arrivals = Arrivals(directory)
        self._directory = directory
        self._jobs: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._asking: set[asyncio.Task[None]] = set()
        self._sees_directory = True
        self.is_lost = False
        self._loss = "its worker process has died"

    async def run(self, job: dict[str, Any], lease: Lease) -> dict[str, Any]:
        if self.is_lost:
            raise WorkerLostError(self._loss)
        name = job["name"]
        done = self._jobs[name] = asyncio.get_running_loop().create_future()
        if not self._sees_directory:
            for piece in pieces_of(self._directory, name):
                self._send(piece)
                await self._drained()
        self._send({"run": job, "lease": lease.dump()})
        return await done

    def stop(self) -> None:
        self._send({"stop": True})

    @abstractmethod
    async def close(self) -> None: ...

    @abstractmethod
    def _send(self, message: dict[str, Any]) -> None:
        """Send a message; what is sent to the dead is lost."""

    @abstractmethod
    async def _drained(self) -> None:
        """Wait until not much is left that was not sent."""

    async def _is_ready(self, stream: asyncio.StreamReader) -> bool:
        """Wait until the worker is ready; whether it will be.

        Raises:
            CodeActTeamError: If it finds that no job could run where it is.
        """
        message = await read_frame(stream)
        if message is None:
            return False
        if (problem := message.get("unfit")) is not None:
            raise CodeActTeamError(problem)
        self._sees_directory = message["ready"]["sees_directory"]
        return True

    async def _read(self, stream: asyncio.StreamReader) -> None:
        """Take what the worker sends, until it is lost."""
        try:
            while (message := await read_frame(stream)) is not None:
                self._take(message)
        finally:
            self._lose()

    def _take(self, message: dict[str, Any]) -> None:
        if (name := message.get("done")) is not None:
            if (job := self._jobs.pop(name, None)) is not None and not job.done():
                if not self._sees_directory:
                    self._arrivals.settle(name)
                job.set_result(message["result"])
        elif "ask" in message:
            task = asyncio.create_task(self._answer(message))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)
        elif (name := message.get("carried")) is not None:
            if name in self._jobs and not self._sees_directory:
                self._arrivals.take(message)
        else:
            self._host.tell(message["job"], load(message["told"]))

    async def _answer(self, asked: dict[str, Any]) -> None:
        job = asked["job"]
        if asked["ask"] == "admit":
            answer: str | bool | None = await self._host.admit(job)
        else:
            answer = await self._host.holds(job, asked["lease"])
        self._send({"answer": answer, "to": asked["ask"], "number": asked["number"], "job": job})

    def _lose(self) -> None:
        self.is_lost = True
        for task in self._asking:
            task.cancel()
        jobs, self._jobs = self._jobs, {}
        for job in jobs.values():
            if not job.done():
                job.set_exception(WorkerLostError(self._loss))
