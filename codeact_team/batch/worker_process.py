"""The program of a worker process: jobs come in on standard input, and what becomes of them goes out on standard output.

It does not outlive its driver: the kernel kills it then, and where it cannot, the end of its input does. Its sandboxes end
with it.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from codeact_team.batch.job_configs import WorkerSettings
from codeact_team.batch.leases import Lease, LeaseFiles
from codeact_team.batch.messages import PARTS, Arrivals, RemoteHost, frame, pieces_of, read_frame, remove
from codeact_team.batch.processes import end_with_parent, opened, own_streams
from codeact_team.batch.throttle import Noted
from codeact_team.batch.worker import Worker
from codeact_team.core.redaction import without_secrets
from codeact_team.errors import CodeActTeamError
from codeact_team.sandbox.temporary import TemporaryDirectory
from codeact_team.telemetry.exporting import exporting


class _Notes:
    """Tells the driver what is for the person, from whatever thread."""

    def __init__(self, host: RemoteHost) -> None:
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def note(self, level: str, text: str) -> None:
        if threading.get_ident() == self._thread:
            self._host.tell("", Noted(level, text))
        else:
            self._loop.call_soon_threadsafe(self._host.tell, "", Noted(level, text))


class _Notices(logging.Handler):
    def __init__(self, notes: _Notes) -> None:
        super().__init__(logging.INFO)
        self._notes = notes

    def emit(self, record: logging.LogRecord) -> None:
        self._notes.note("warning" if record.levelno >= logging.WARNING else "note", record.getMessage())


class _Output:
    """What goes to the driver."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    def send(self, message: dict[str, Any]) -> None:
        self._writer.write(frame(message))

    async def carry(self, directory: Path, job: str) -> None:
        """Send what there is of a job, no faster than it is taken."""
        for piece in pieces_of(directory, job):
            self.send(piece)
            await self._writer.drain()


async def _serve(incoming: int, outgoing: int) -> None:
    reader, writer = await opened(incoming, outgoing)
    if (place := await read_frame(reader)) is None:
        return
    end_with_parent(place)
    if (message := await read_frame(reader)) is None:
        return
    settings, output = WorkerSettings(**message["begin"]), _Output(writer)
    host = RemoteHost(output.send)
    notes = _Notes(host)
    _tell_notices(notes)
    with exporting(partial(notes.note, "warning"), without_secrets), _kept_elsewhere(settings) as directory:
        try:
            async with Worker(settings, host, directory=directory, end=_end) as worker:
                # what is there now stays: the collector need not go through it again and again
                gc.freeze()
                output.send({"ready": {"sees_directory": directory is None}})
                await _work(worker, host, output, reader, directory)
        except CodeActTeamError as error:
            output.send({"unfit": str(error)})
            await writer.drain()
    writer.close()


@contextmanager
def _kept_elsewhere(settings: WorkerSettings) -> Generator[Path | None]:
    """A directory for runs, if this machine has none of those that the driver works in."""
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
            # one that no other machine has: runs that were made in it can go on there
            os.chdir(own.path)
        for part in PARTS:
            os.mkdir(os.path.join(own.path, part), 0o700)
        yield Path(own.path)
    finally:
        os.chdir("/")
        own.remove()


async def _work(
    worker: Worker, host: RemoteHost, output: _Output, reader: asyncio.StreamReader, directory: Path | None
) -> None:
    jobs = set[asyncio.Task[None]]()
    arrivals = None if directory is None else Arrivals(directory)

    async def run(job: dict[str, Any], lease: dict[str, Any]) -> None:
        result = await worker.run(job, Lease(**lease))
        if directory is not None:
            await output.carry(directory, job["name"])
            remove(directory, job["name"])
        output.send({"done": job["name"], "result": result})

    while (message := await read_frame(reader)) is not None:
        if "run" in message:
            if arrivals is not None:
                arrivals.settle(message["run"]["name"])
            jobs.add(task := asyncio.create_task(run(message["run"], message["lease"])))
            task.add_done_callback(_ended(jobs))
        elif "answer" in message:
            host.answer(message)
        elif "carried" in message:
            if arrivals is not None:
                arrivals.take(message)
        else:
            worker.stop()
    if jobs:
        # nobody is there for whom they could go on
        _end()


def _end() -> None:
    os._exit(1)


def _ended(jobs: set[asyncio.Task[None]]) -> Any:
    def forget(task: asyncio.Task[None]) -> None:
        jobs.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # a fault of this program; its driver lets another worker try
            logging.getLogger(__name__).error("a worker failed", exc_info=error)
            sys.excepthook(type(error), error, error.__traceback__)
            _end()

    return forget


def _tell_notices(notes: _Notes) -> None:
    ours = logging.getLogger("codeact_team")
    ours.setLevel(logging.INFO)
    ours.addHandler(_Notices(notes))
    logging.getLogger().addHandler(logging.NullHandler())

    def show(message: Warning | str, category: type[Warning], *place: object) -> None:
        if issubclass(category, UserWarning):
            notes.note("warning", str(message))

    warnings.showwarning = show


def main() -> None:
    """Run jobs until there is nobody to run them for."""
    asyncio.run(_serve(*own_streams()))


if __name__ == "__main__":
    main()
