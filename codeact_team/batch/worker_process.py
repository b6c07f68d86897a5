"""A worker that serves a driver in another process: as a program of its own, or in the process of a Ray actor.

It does not outlive its driver, nor do its sandboxes outlive it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from codeact_team.batch.carrying import PARTS, Arrivals, remove_job
from codeact_team.batch.leases import Lease, LeaseFiles
from codeact_team.batch.remote_worker import RemoteDriver, send_files
from codeact_team.batch.results import BatchNoted
from codeact_team.batch.settings import WORKER_SETTINGS, WorkerSettings
from codeact_team.batch.worker import Worker
from codeact_team.core.child_process import Message, MessageChannel, connect_to_parent, take_standard_streams
from codeact_team.core.notices import Level, logs_as_notices
from codeact_team.errors import CodeActTeamError
from codeact_team.sandbox.temporary import TemporaryDirectory
from codeact_team.telemetry.exporting import exporting
from codeact_team.text.redaction import without_secrets


async def serve(channel: MessageChannel) -> None:
    """Run the jobs that a driver sends, until it has no more.

    It changes the working directory, the logging and the warnings of this process, and ends the process where the driver
    is gone, or another worker has taken over a job.
    """
    if (message := await channel.receive()) is None:
        return
    settings, driver = WORKER_SETTINGS.validate_python(message["begin"]), RemoteDriver(channel.send)
    loop, thread = asyncio.get_running_loop(), threading.get_ident()

    def notify(level: Level, text: str) -> None:
        report = partial(driver.report, "", BatchNoted(level=level, text=text))
        if threading.get_ident() == thread:
            report()
        else:
            loop.call_soon_threadsafe(report)

    with (
        logs_as_notices(notify),
        exporting(partial(notify, "warning"), without_secrets),
        _own_directory(settings) as directory,
    ):
        try:
            async with Worker(settings, driver, directory=directory, end=_end_process) as worker:
                # the garbage collector need not visit again and again what stays
                gc.freeze()
                channel.send({"ready": {"sees_directory": directory is None}})
                await _Service(channel, worker, driver, directory).work()
        except CodeActTeamError as error:
            channel.send({"unfit": str(error)})
        await channel.drained()


@contextmanager
def _own_directory(settings: WorkerSettings) -> Generator[Path | None]:
    """A temporary directory for runs; ``None`` if this machine sees the directory of the batch."""
    sees = LeaseFiles(Path(settings.working_directory, settings.directory)).is_seen(settings.token)
    is_here = os.path.isdir(settings.working_directory)
    if is_here:
        os.chdir(settings.working_directory)
    if sees and is_here:
        yield None
        return
    own = TemporaryDirectory()
    try:
        if not is_here:
            # no other machine has a directory of this name, so runs that name it as theirs can resume in it
            os.chdir(own.path)
        for part in PARTS:
            os.mkdir(os.path.join(own.path, part), 0o700)
        yield Path(own.path)
    finally:
        os.chdir("/")
        own.remove()


class _Service:
    """Answers the messages of a driver; ``directory`` is ``None`` if the directory of the batch keeps the runs."""

    def __init__(
        self, channel: MessageChannel, worker: Worker, driver: RemoteDriver, directory: Path | None
    ) -> None:
        self._channel = channel
        self._worker = worker
        self._driver = driver
        self._directory = directory
        self._arrivals = None if directory is None else Arrivals(directory)
        self._jobs: set[asyncio.Task[None]] = set()

    async def work(self) -> None:
        """Answer messages until there are no more."""
        while (message := await self._channel.receive()) is not None:
            if "run" in message:
                task = asyncio.create_task(self._run(message["run"], Lease(**message["lease"])))
                self._jobs.add(task)
                task.add_done_callback(self._ended)
            elif "answer" in message:
                self._driver.take_answer(message)
            elif "carried" in message:
                if self._arrivals is not None:
                    self._arrivals.add(message["carried"], message["data"])
            else:
                self._worker.stop()
        if self._jobs:
            # the driver is gone, so nobody would take their results
            _end_process()

    async def _run(self, job: Message, lease: Lease) -> None:
        name = job["name"]
        if self._arrivals is not None:
            self._arrivals.settle(name)
        result = await self._worker.run(job, lease)
        if self._directory is not None:
            await send_files(self._channel, self._directory, name)
            remove_job(self._directory, name)
        self._channel.send({"done": name, "result": result})

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._jobs.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # a fault of this program; the driver lets another worker try
            logging.getLogger(__name__).error("a worker failed", exc_info=error)
            sys.excepthook(type(error), error, error.__traceback__)
            _end_process()


def _end_process() -> None:
    os._exit(1)


async def _serve_parent(incoming: int, outgoing: int) -> None:
    channel, _ = await connect_to_parent(incoming, outgoing)
    await serve(channel)
    await channel.close_output()


def main() -> None:
    """Run jobs of the parent process, until there are no more."""
    asyncio.run(_serve_parent(*take_standard_streams()))
