"""Messages between a batch and its workers, with the files that they carry.

A run travels in pieces of a few kilobytes, as plain data. Where it arrives it is put together aside, and takes its
place as a whole. Names of files come from hostile code: nothing is written but below the directory of its run, and no link is
followed.

To the worker go ``begin``, ``run`` with a ``lease``, ``answer`` and ``stop``; from it come ``ready`` or ``unfit``, ``ask``,
``told`` and ``done``. ``carried`` goes both ways, with the pieces of a run.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from codeact_team.batch.leases import Lease
from codeact_team.batch.links import WorkerLostError
from codeact_team.batch.throttle import Called, Host, Told, dump, load
from codeact_team.core.atomic_files import Directory
from codeact_team.core.files import below, made_named, move_named, open_regular, opened, remove_named
from codeact_team.core.trees import files_below
from codeact_team.errors import CodeActTeamError, JournalError

PARTS = ("runs", "files")
"""Directories of a batch that have one for each job."""
_ARRIVING = "arriving"
_LEAVING = "leaving"
_PIECE = 48 << 10
MAX_CARRIED = 4 << 30
"""Bytes of one job: what is above that is no longer the result of a task, and fills disks."""


def pieces_of(directory: Path, job: str) -> Iterator[dict[str, Any]]:
    """What there is of a job, as messages. Blocks.

    Args:
        directory: That of the batch.
        job: The name of the job.

    Raises:
        JournalError: If it cannot be read, or is too large.
    """
    left = MAX_CARRIED
    for part in PARTS:
        top = directory / part / job
        for path in _files_below(top):
            name = os.path.relpath(path, top)
            try:
                with open(open_regular(path), "rb") as file:
                    begins = True
                    while (data := file.read(_PIECE)) or begins:
                        left -= len(data)
                        if left < 0:
                            raise JournalError(
                                f"{top} is larger than the {MAX_CARRIED >> 30} GiB that are carried"
                            )
                        text = base64.b64encode(data).decode()
                        yield {"carried": job, "part": part, "path": name, "begins": begins, "data": text}
                        begins = False
            except OSError as error:
                raise JournalError(f"{path} cannot be carried: {error.strerror}") from error


def remove(directory: Path, job: str) -> None:
    """Remove what there is of a job. Blocks."""
    for part in PARTS:
        with suppress(FileNotFoundError):
            remove_named(directory / part / job)


def _files_below(top: Path) -> list[Path]:
    found: list[Path] = []
    try:
        with suppress(FileNotFoundError), opened(top) as directory:
            for inner, name, status in files_below(directory):
                if not stat.S_ISLNK(status.st_mode):
                    found.append(Path(top, *inner.names, name))
    except OSError as error:
        raise JournalError(f"{top} cannot be carried: {error.strerror}") from error
    return sorted(found)


class Arrivals:
    """Takes what is carried. All of it blocks.

    Args:
        directory: That of the batch.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._left: dict[str, int] = {}
        """How many bytes may still come of each job that has begun to arrive."""

    def take(self, message: dict[str, Any]) -> None:
        """Take a message of :func:`pieces_of`.

        Raises:
            JournalError: If it cannot be kept, or is none of those.
        """
        job, part, path = str(message["carried"]), message["part"], str(message["path"])
        if part not in PARTS:
            raise JournalError(f"what is carried of {job} is no run: {part!r}")
        try:
            top = self._directory / _ARRIVING / job
            if job not in self._left:
                self._left[job] = MAX_CARRIED
                with suppress(FileNotFoundError):
                    remove_named(top)
            with made_named(top / part, 0o700):
                pass
            data = base64.b64decode(message["data"])
            self._left[job] -= len(data)
            if self._left[job] < 0:
                raise JournalError(f"more is carried of {job} than the {MAX_CARRIED >> 30} GiB that may be")
            _write(top / part, path, data, begins=message["begins"])
        except OSError as error:
            raise JournalError(f"what is carried of {job} cannot be kept: {error.strerror}") from error

    def give_up(self) -> None:
        """Nothing more comes."""
        for job in self._left:
            with suppress(OSError):
                remove_named(self._directory / _ARRIVING / job)
        self._left.clear()

    def settle(self, job: str) -> None:
        """All of a job has come: it takes the place of what was there of it.

        Raises:
            JournalError: If it cannot.
        """
        if self._left.pop(job, None) is None:
            return
        top, aside = self._directory / _ARRIVING / job, self._directory / _LEAVING / job
        try:
            for part in PARTS:
                goal = self._directory / part / job
                with suppress(FileNotFoundError):
                    remove_named(aside)
                with made_named(aside.parent, 0o700):
                    pass
                with suppress(FileNotFoundError):
                    move_named(goal, aside)
                with suppress(FileNotFoundError):
                    move_named(top / part, goal)
                with suppress(FileNotFoundError):
                    remove_named(aside)
            remove_named(top)
            for empty in (top.parent, aside.parent):
                with suppress(OSError):
                    empty.rmdir()
        except OSError as error:
            raise JournalError(f"what was carried of {job} cannot be kept: {error.strerror}") from error


def _write(top: Path, path: str, data: bytes, *, begins: bool) -> None:
    above, _, name = path.rpartition("/")
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    flags |= os.O_CREAT | os.O_EXCL if begins else os.O_APPEND
    with opened(top) as directory:
        if begins:
            Directory(directory).make(above)
        with below(directory, above) as folder:
            # what is above is for its owner only
            with open(os.open(name, flags, 0o666, dir_fd=folder), "wb") as file:
                file.write(data)


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
