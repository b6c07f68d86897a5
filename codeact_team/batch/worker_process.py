"""The program of a worker process: jobs come in on standard input, and what becomes of them goes out on standard output.

It does not outlive its driver: the kernel kills it then, and where it cannot, the end of its input does. Its sandboxes end
with it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import warnings
from functools import partial
from itertools import count
from signal import SIGKILL
from typing import Any

from codeact_team.batch.host import Called, Noted, Told, dump
from codeact_team.batch.job_configs import WorkerSettings
from codeact_team.batch.links import frame, read_frame
from codeact_team.batch.worker import Worker
from codeact_team.config.credentials import without_secrets
from codeact_team.system.kernel import prctl
from codeact_team.telemetry.exporting import exporting

_PR_SET_PDEATHSIG = 1


class _Driver:
    """The host of a worker, at the other end of a pipe."""

    def __init__(self, writer: asyncio.WriteTransport) -> None:
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._numbers = count()
        self._asked: dict[int, asyncio.Future[str | None]] = {}

    def send(self, message: dict[str, Any]) -> None:
        self._writer.write(frame(message))

    async def admit(self, job: str) -> str | None:
        number = next(self._numbers)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self.send({"admit": number, "job": job})
        try:
            return await answer
        except asyncio.CancelledError:
            self._asked.pop(number, None)
            raise

    def tell(self, job: str, told: Told) -> None:
        self.send({"job": job, "told": dump(told)})

    def note(self, level: str, text: str) -> None:
        """Tell something for the person, from whatever thread."""
        if threading.get_ident() == self._thread:
            self.tell("", Noted(level, text))
        else:
            self._loop.call_soon_threadsafe(self.tell, "", Noted(level, text))

    def answer(self, number: int, job: str, refusal: str | None) -> None:
        if (asked := self._asked.pop(number, None)) is not None and not asked.done():
            asked.set_result(refusal)
        elif refusal is None:
            # whoever has asked was stopped meanwhile
            self.tell(job, Called())


class _Notices(logging.Handler):
    def __init__(self, driver: _Driver) -> None:
        super().__init__(logging.INFO)
        self._driver = driver

    def emit(self, record: logging.LogRecord) -> None:
        self._driver.note("warning" if record.levelno >= logging.WARNING else "note", record.getMessage())


async def _serve(incoming: int, outgoing: int) -> None:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(incoming, "rb", 0))
    writer, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(outgoing, "wb", 0))
    driver = _Driver(writer)
    begin = await read_frame(reader)
    if begin is None:
        return
    _end_with(begin["driver"])
    sys.path[:] = begin["path"]
    _tell_notices(driver)
    with exporting(partial(driver.note, "warning"), without_secrets):
        async with Worker(WorkerSettings(**begin["settings"]), driver) as worker:
            driver.send({"ready": True})
            await _work(worker, driver, reader)
    writer.close()


async def _work(worker: Worker, driver: _Driver, reader: asyncio.StreamReader) -> None:
    jobs = set[asyncio.Task[None]]()

    async def run(job: dict[str, Any]) -> None:
        driver.send({"done": job["name"], "result": await worker.run(job)})

    while (message := await read_frame(reader)) is not None:
        if "run" in message:
            jobs.add(task := asyncio.create_task(run(message["run"])))
            task.add_done_callback(_ended(jobs))
        elif "admitted" in message:
            driver.answer(message["admitted"], message["job"], message["refusal"])
        else:
            worker.stop()
    if jobs:
        # nobody is there for whom they could go on
        os._exit(1)


def _ended(jobs: set[asyncio.Task[None]]) -> Any:
    def forget(task: asyncio.Task[None]) -> None:
        jobs.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # a fault of this program; its driver lets another worker try
            logging.getLogger(__name__).error("a worker failed", exc_info=error)
            sys.excepthook(type(error), error, error.__traceback__)
            os._exit(1)

    return forget


def _tell_notices(driver: _Driver) -> None:
    ours = logging.getLogger("codeact_team")
    ours.setLevel(logging.INFO)
    ours.addHandler(_Notices(driver))
    logging.getLogger().addHandler(logging.NullHandler())

    def show(message: Warning | str, category: type[Warning], *place: object) -> None:
        if issubclass(category, UserWarning):
            driver.note("warning", str(message))

    warnings.showwarning = show


def _end_with(driver: int) -> None:
    if sys.platform == "linux":
        prctl(_PR_SET_PDEATHSIG, SIGKILL)
    if os.getppid() != driver:
        os._exit(1)


def main() -> None:
    """Run jobs until there is nobody to run them for."""
    incoming, outgoing = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    # what code prints here is no message
    os.dup2(nowhere, 0)
    os.dup2(2, 1)
    os.close(nowhere)
    asyncio.run(_serve(incoming, outgoing))


if __name__ == "__main__":
    main()
