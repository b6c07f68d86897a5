"""Both ends of the messages between a batch and a worker that runs in another process, here or on another machine.

========================  ====================================================================
to the worker             ``begin`` once, ``run`` with a ``lease``, ``answer``, ``stop``
from the worker           ``ready`` or ``unfit`` once, ``ask``, ``report``, ``done``
both ways                 ``carried``: a chunk of the files of a job
========================  ====================================================================
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any

from codeact_team.batch.carrying import Arrivals, packed
from codeact_team.batch.leases import Lease
from codeact_team.batch.results import BatchNoted, TaskProgressed, TaskRetried
from codeact_team.batch.settings import WORKER_SETTINGS, WorkerSettings
from codeact_team.batch.throttle import CallEnded, DriverInterface, Report
from codeact_team.core.accounting import ModelUsage
from codeact_team.core.aio import to_the_end
from codeact_team.core.child_process import ChildProcess, Message, MessageChannel, ProcessLostError
from codeact_team.errors import CodeActTeamError

_REPORTS: dict[str, type[Report]] = {
    kind.__name__: kind for kind in (CallEnded, ModelUsage, TaskRetried, TaskProgressed, BatchNoted)
}


class RemoteDriver:
    """The driver, as a worker in another process calls it; ``send`` sends it a message."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._numbers = count()
        self._questions: dict[int, asyncio.Future[Any]] = {}

    async def admit(self, job: str) -> str | None:
        return await self._ask({"ask": "admit", "job": job})

    async def holds(self, job: str, lease: str) -> bool:
        return await self._ask({"ask": "holds", "job": job, "lease": lease})

    def report(self, job: str, report: Report) -> None:
        self._send({"job": job, "report": type(report).__name__, "fields": asdict(report)})

    async def _ask(self, question: Message) -> Any:
        number = next(self._numbers)
        answer = self._questions[number] = asyncio.get_running_loop().create_future()
        self._send({**question, "number": number})
        try:
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled():
                self._give_back(question["ask"], question["job"], answer.result())
            raise
        finally:
            self._questions.pop(number, None)

    def take_answer(self, message: Message) -> None:
        """Take an answer of the driver."""
        question = self._questions.get(message["number"])
        if question is not None and not question.done():
            question.set_result(message["answer"])
        else:
            self._give_back(message["to"], message["job"], message["answer"])

    def _give_back(self, asked: str, job: str, answer: Any) -> None:
        """Report the end of a call that was admitted after its caller was cancelled."""
        if asked == "admit" and answer is None:
            self.report(job, CallEnded())


class NodeConnection:
    """The driver's end of a channel to a worker on a node, by way of the gateway, which starts it."""

    def __init__(self, number: int, gateway: ChildProcess) -> None:
        self._number = number
        self._gateway = gateway
        self._incoming: asyncio.Queue[Message] = asyncio.Queue()
        self._ended = asyncio.Event()
        gateway.send({"worker": number, "start": True})

    def deliver(self, message: Message) -> None:
        """Deliver a message that the gateway has sent about the worker."""
        self._incoming.put_nowait(message)
        if "ended" in message:
            self._ended.set()

    def send(self, message: Message) -> None:
        self._gateway.send({"worker": self._number, "message": message})

    async def drained(self) -> None:
        await self._gateway.drained()

    async def receive(self) -> Message:
        message = await self._incoming.get()
        if (failure := message.get("failed")) is not None:
            raise CodeActTeamError(failure)
        if "message" not in message:
            raise ProcessLostError(message.get("lost", "its worker has ended"))
        return message["message"]

    async def close(self) -> None:
        self._gateway.send({"worker": self._number, "end": True})
        await self._ended.wait()


async def send_files(channel: MessageChannel, directory: Path, job: str) -> None:
    """Send the files of a job in the directory of a batch."""
    for chunk in packed(directory, job):
        channel.send({"carried": job, "data": chunk})
        await channel.drained()


@asynccontextmanager
async def remote_worker(
    connection: ChildProcess | NodeConnection, settings: WorkerSettings, driver: DriverInterface
) -> AsyncGenerator[RemoteWorker]:
    """Make the process at the other end a worker, wait until it is ready, and end it after use.

    Raises:
        ProcessLostError: If it dies before it is ready.
        CodeActTeamError: If no task could run there.
    """
    worker = RemoteWorker(connection, driver, Path(settings.directory))
    reading: asyncio.Task[None] | None = None
    try:
        connection.send({"begin": WORKER_SETTINGS.dump_python(settings, mode="json")})
        message = await connection.receive()
        if (problem := message.get("unfit")) is not None:
            raise CodeActTeamError(problem)
        worker.sees_directory = message["ready"]["sees_directory"]
        reading = asyncio.create_task(worker.read())
        yield worker
    finally:
        worker.lose("its connection was closed")
        await to_the_end(connection.close())
        if reading is not None:
            await reading


class RemoteWorker:
    """A worker in another process, as the driver calls it; made by :func:`remote_worker`.

    Attributes:
        sees_directory: Whether it has the directory of the batch, so that files need not be carried.
        is_lost: Whether the worker has died.
    """

    def __init__(
        self, connection: ChildProcess | NodeConnection, driver: DriverInterface, directory: Path
    ) -> None:
        self._connection = connection
        self._driver = driver
        self._directory = directory
        self._arrivals = Arrivals(directory)
        self._jobs: dict[str, asyncio.Future[Message]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._loss = ""
        self.sees_directory = True
        self.is_lost: bool = False

    async def run(self, job: Message, lease: Lease) -> Message:
        """Run a job, as :meth:`Worker.run` does.

        Raises:
            ProcessLostError: If the worker dies meanwhile.
        """
        if self.is_lost:
            raise ProcessLostError(self._loss)
        name = job["name"]
        done = self._jobs[name] = asyncio.get_running_loop().create_future()
        if not self.sees_directory:
            await send_files(self._connection, self._directory, name)
        self._connection.send({"run": job, "lease": asdict(lease)})
        return await done

    def stop(self) -> None:
        """Stop all jobs of the worker, which end in order."""
        self._connection.send({"stop": True})

    async def read(self) -> None:
        """Take the messages of the worker, until it is lost."""
        try:
            while True:
                try:
                    message = await self._connection.receive()
                except (ProcessLostError, CodeActTeamError) as error:
                    self.lose(str(error))
                    return
                self._handle(message)
        finally:
            # also where a message cannot be kept, which is raised when the worker is closed
            self.lose("its connection was closed")

    def _handle(self, message: Message) -> None:
        if (name := message.get("done")) is not None:
            if (job := self._jobs.pop(name, None)) is not None and not job.done():
                if not self.sees_directory:
                    self._arrivals.settle(name)
                job.set_result(message["result"])
        elif "ask" in message:
            task = asyncio.create_task(self._answer(message))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        elif (name := message.get("carried")) is not None:
            if name in self._jobs and not self.sees_directory:
                self._arrivals.add(name, message["data"])
        else:
            self._driver.report(message["job"], _REPORTS[message["report"]](**message["fields"]))

    async def _answer(self, question: Message) -> None:
        job = question["job"]
        if question["ask"] == "admit":
            answer: str | bool | None = await self._driver.admit(job)
        else:
            answer = await self._driver.holds(job, question["lease"])
        self._connection.send(
            {"answer": answer, "to": question["ask"], "number": question["number"], "job": job}
        )

    def lose(self, reason: str) -> None:
        """Raise the loss of the worker from all its jobs; only the first reason counts."""
        if self.is_lost:
            return
        self.is_lost, self._loss = True, reason
        for task in self._answering:
            task.cancel()
        self._arrivals.discard()
        jobs, self._jobs = self._jobs, {}
        for job in jobs.values():
            if not job.done():
                job.set_exception(ProcessLostError(reason))
