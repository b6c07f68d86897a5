"""Both ends of the messages between a batch and a worker that runs in another process, here or on another machine.

========================  ====================================================================
to the worker             ``begin`` once, ``run`` with a ``lease``, ``answer``, ``stop``
from the worker           ``ready`` or ``unfit`` once, ``ask``, ``report``, ``done``
both ways                 ``carried``: a chunk of the files of a job
========================  ====================================================================
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from codeact_team.batch.carrying import Arrivals, packed
from codeact_team.batch.child_process import Message, MessageChannel, WorkerLostError
from codeact_team.batch.leases import Lease
from codeact_team.batch.settings import WorkerSettings
from codeact_team.batch.throttle import CallEnded, DriverInterface, Report, dump_report, load_report
from codeact_team.core.aio import to_the_end
from codeact_team.errors import CodeActTeamError


class RemoteDriver:
    """The driver, as a worker in another process calls it.

    Args:
        send: Sends a message to it.
    """

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self._numbers = count()
        self._questions: dict[int, asyncio.Future[Any]] = {}

    async def admit(self, job: str) -> str | None:
        return await self._ask({"ask": "admit", "job": job})

    async def holds(self, job: str, lease: str) -> bool:
        return await self._ask({"ask": "holds", "job": job, "lease": lease})

    def report(self, job: str, report: Report) -> None:
        self._send({"job": job, "report": dump_report(report)})

    async def _ask(self, question: Message) -> Any:
        number = next(self._numbers)
        answer = self._questions[number] = asyncio.get_running_loop().create_future()
        self._send({**question, "number": number})
        try:
            return await answer
        except asyncio.CancelledError:
            self._questions.pop(number, None)
            raise

    def take_answer(self, message: Message) -> None:
        """Hand an answer of the driver to whoever waits for it."""
        question = self._questions.pop(message["number"], None)
        if question is not None and not question.done():
            question.set_result(message["answer"])
        elif message["to"] == "admit" and message["answer"] is None:
            # whoever asked was cancelled meanwhile, and will not make the call
            self.report(message["job"], CallEnded())


class WorkerConnection(MessageChannel, Protocol):
    """The driver's end of a channel to a worker."""

    async def receive(self) -> Message:
        """The next message.

        Raises:
            WorkerLostError: If the worker has died.
            CodeActTeamError: If no worker can run there.
        """
        ...

    async def close(self) -> None:
        """End the worker."""
        ...


class RemoteWorker:
    """A worker in another process, as the driver calls it; made by :meth:`start`.

    Attributes:
        is_lost: Whether the worker has died.
    """

    def __init__(self, connection: WorkerConnection, driver: DriverInterface, directory: Path) -> None:
        self._connection = connection
        self._driver = driver
        self._directory = directory
        self._arrivals = Arrivals(directory)
        self._sees_directory = True
        self._jobs: dict[str, asyncio.Future[Message]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[None] | None = None
        self._loss = ""
        self.is_lost = False

    @classmethod
    async def start(
        cls, connection: WorkerConnection, settings: WorkerSettings, driver: DriverInterface
    ) -> RemoteWorker:
        """Let the process at the other end begin as a worker, and wait until it is ready.

        Raises:
            WorkerLostError: If it dies meanwhile.
            CodeActTeamError: If no task could run there.
        """
        worker = cls(connection, driver, Path(settings.directory))
        try:
            connection.send({"begin": settings.dump()})
            message = await connection.receive()
            if (problem := message.get("unfit")) is not None:
                raise CodeActTeamError(problem)
        except BaseException:
            await to_the_end(worker.close())
            raise
        worker._sees_directory = message["ready"]["sees_directory"]
        worker._reading = asyncio.create_task(worker._read())
        return worker

    async def run(self, job: Message, lease: Lease) -> Message:
        """Run a job, as :meth:`Worker.run` does.

        Raises:
            WorkerLostError: If the worker dies meanwhile.
        """
        if self.is_lost:
            raise WorkerLostError(self._loss)
        name = job["name"]
        done = self._jobs[name] = asyncio.get_running_loop().create_future()
        if not self._sees_directory:
            for chunk in packed(self._directory, name):
                self._connection.send({"carried": name, "data": chunk})
                await self._connection.drained()
        self._connection.send({"run": job, "lease": lease.dump()})
        return await done

    def stop(self) -> None:
        """Stop all jobs of the worker, which end in order."""
        self._connection.send({"stop": True})

    async def close(self) -> None:
        """End the worker."""
        self._lose("its connection was closed")
        await self._connection.close()
        if self._reading is not None:
            await self._reading

    async def _read(self) -> None:
        try:
            while True:
                try:
                    message = await self._connection.receive()
                except (WorkerLostError, CodeActTeamError) as error:
                    self._lose(str(error))
                    return
                self._take(message)
        finally:
            # also where a message cannot be kept: whoever closes the worker gets that error
            self._lose("its connection was closed")

    def _take(self, message: Message) -> None:
        if (name := message.get("done")) is not None:
            if (job := self._jobs.pop(name, None)) is not None and not job.done():
                if not self._sees_directory:
                    self._arrivals.settle(name)
                job.set_result(message["result"])
        elif "ask" in message:
            task = asyncio.create_task(self._answer(message))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        elif (name := message.get("carried")) is not None:
            if name in self._jobs and not self._sees_directory:
                self._arrivals.add(name, message["data"])
        else:
            self._driver.report(message["job"], load_report(message["report"]))

    async def _answer(self, question: Message) -> None:
        job = question["job"]
        if question["ask"] == "admit":
            answer: str | bool | None = await self._driver.admit(job)
        else:
            answer = await self._driver.holds(job, question["lease"])
        self._connection.send(
            {"answer": answer, "to": question["ask"], "number": question["number"], "job": job}
        )

    def _lose(self, reason: str) -> None:
        if self.is_lost:
            return
        self.is_lost, self._loss = True, reason
        for task in self._answering:
            task.cancel()
        self._arrivals.discard()
        jobs, self._jobs = self._jobs, {}
        for job in jobs.values():
            if not job.done():
                job.set_exception(WorkerLostError(reason))
