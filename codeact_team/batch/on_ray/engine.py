"""The workers of a batch on a Ray cluster, as its driver sees them."""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import Process
from contextlib import suppress
from dataclasses import asdict
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from codeact_team.batch.job_configs import WorkerSettings
from codeact_team.batch.links import Link, WorkerLostError
from codeact_team.batch.messages import RemoteLink, frame
from codeact_team.batch.on_ray import frames
from codeact_team.batch.on_ray.frames import Frame, Kind
from codeact_team.batch.processes import end_program, start_program
from codeact_team.batch.throttle import Host
from codeact_team.core.aio import to_the_end
from codeact_team.errors import CodeActTeamError, SettingError

_INSTALL = "tasks on a Ray cluster need ray: pip install 'codeact-team[ray]'"
_HOW_TO_START = (
    "start one by `ray start --head` and run this on one of its nodes, or name it by --address; `--address local` "
    "starts one of this machine alone, for this batch"
)
_AUTO = "auto"
_PATIENCE = 5.0
"""Seconds in which the head of a cluster takes a connection; Ray itself tries for two minutes."""
_CONNECTING = 120.0
"""Seconds in which a cluster is found, or one of this machine is started."""


class RayEngine:
    """Workers on the nodes of a Ray cluster: Ray finds their places, and replaces no worker by itself.

    Args:
        address: Of the cluster, as Ray has it; ``local`` starts one on this machine; by default what ``RAY_ADDRESS`` says, or
            the one that this machine is a node of.

    Raises:
        SettingError: If Ray is not installed.
    """

    def __init__(self, address: str | None) -> None:
        if not _has_ray():
            raise SettingError(_INSTALL)
        self._address = address or os.environ.get("RAY_ADDRESS") or _AUTO
        self._numbers = count(1)
        self._links: dict[int, RayLink] = {}
        self._nodes = 0
        self._gateway: Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._is_lost = False

    def workers(self, jobs: int) -> int:
        """One for each node."""
        return self._nodes

    async def start(self, settings: WorkerSettings, host: Host, *, is_only: bool) -> Link:
        if self._is_lost:
            raise CodeActTeamError(
                f"the connection to the Ray cluster at {self._address} is lost: when it is there again, the same command goes on"
            )
        number = next(self._numbers)
        link = self._links[number] = RayLink(number, self, host, Path(settings.directory))
        try:
            await link.begin(settings)
        except BaseException:
            await to_the_end(link.close())
            raise
        return link

    def send(self, frame: Frame) -> None:
        """Send something to the gateway."""
        assert self._gateway is not None
        assert self._gateway.stdin is not None
        if not self._gateway.stdin.is_closing():
            self._gateway.stdin.write(frame.encode())

    async def drained(self) -> None:
        """Wait until not much is left that was not sent."""
        assert self._gateway is not None
        assert self._gateway.stdin is not None
        with suppress(ConnectionError):
            await self._gateway.stdin.drain()

    async def __aenter__(self) -> Self:
        await _refuse_unreachable(self._address)
        gateway = self._gateway = await start_program("codeact_team.batch.on_ray.gateway")
        try:
            assert gateway.stdin is not None
            assert gateway.stdout is not None
            gateway.stdin.write(frame({"address": self._address}))
            answer = None
            with suppress(TimeoutError):
                answer = await asyncio.wait_for(frames.read(gateway.stdout), _CONNECTING)
            if answer is None or answer.kind is not Kind.CONNECTED:
                reason = "it does not answer" if answer is None else answer.data.decode(errors="replace")
                raise SettingError(
                    f"there is no Ray cluster at {self._address} that takes this one in ({reason}): {_HOW_TO_START}. One that "
                    "asks for a token needs RAY_AUTH_MODE=token on this machine, too"
                )
            self._nodes = int(answer.data)
            if not self._nodes:
                raise SettingError(
                    f"the Ray cluster at {self._address} has no node with a processor for tasks"
                )
        except BaseException:
            gateway.kill()
            await to_the_end(end_program(gateway))
            raise
        self._reading = asyncio.create_task(self._read(gateway.stdout))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._gateway is not None
        assert self._reading is not None
        await to_the_end(end_program(self._gateway))
        await self._reading

    async def _read(self, stream: asyncio.StreamReader) -> None:
        while (frame := await frames.read(stream)) is not None:
            self._links[frame.worker].take_frame(frame)
            if frame.kind is Kind.END:
                del self._links[frame.worker]
        self._is_lost = True
        for number, link in self._links.items():
            link.take_frame(Frame(number, Kind.LOST, b"the connection to the cluster was lost"))
            link.take_frame(Frame(number, Kind.END))


class RayLink(RemoteLink):
    """A worker on a node.

    Args:
        number: Its own.
        engine: Reaches it.
        host: The driver.
        directory: That of the batch.
    """

    def __init__(self, number: int, engine: RayEngine, host: Host, directory: Path) -> None:
        super().__init__(host, directory)
        self._number = number
        self._engine = engine
        self._stream = asyncio.StreamReader()
        self._started = asyncio.Event()
        self._is_closing = False
        self._ended = asyncio.Event()
        self._failure: str | None = None
        self._reading: asyncio.Task[None] | None = None

    async def begin(self, settings: WorkerSettings) -> None:
        """Start the worker, and wait until it is ready: as long as no node has room for it.

        Raises:
            WorkerLostError: If it is lost meanwhile.
            CodeActTeamError: If none can run there.
        """
        self._engine.send(Frame(self._number, Kind.START))
        await self._started.wait()
        self._send({"begin": asdict(settings)})
        if not await self._is_ready(self._stream):
            if self._failure is not None:
                raise CodeActTeamError(self._failure)
            raise WorkerLostError(self._loss)
        self._reading = asyncio.create_task(self._read(self._stream))

    def take_frame(self, frame: Frame) -> None:
        """Take what the gateway says of the worker."""
        match frame.kind:
            case Kind.DATA:
                self._stream.feed_data(frame.data)
                return
            case Kind.LOST:
                self._loss = frame.data.decode(errors="replace")
                self._stream.feed_eof()
            case Kind.FAILED:
                self._failure = frame.data.decode(errors="replace")
                self._stream.feed_eof()
            case Kind.END:
                self._stream.feed_eof()
                self._ended.set()
            case _:
                pass
        self._started.set()

    async def close(self) -> None:
        self._lose()
        if not self._is_closing:
            self._is_closing = True
            self._engine.send(Frame(self._number, Kind.END))
        await self._ended.wait()
        if self._reading is not None:
            await self._reading

    def _send(self, message: dict[str, Any]) -> None:
        self._engine.send(Frame(self._number, Kind.DATA, frame(message)))

    async def _drained(self) -> None:
        await self._engine.drained()


def _has_ray() -> bool:
    # it is not imported here: see the gateway
    try:
        return find_spec("ray") is not None
    except ValueError:
        return False


async def _refuse_unreachable(address: str) -> None:
    """Refuse an address where nobody listens.

    Raises:
        SettingError: If it is one.
    """
    if address in (_AUTO, "local"):
        return
    if "://" in address:
        raise SettingError(
            f"{address}: workers are not reached through a client's connection; run this on a node of the cluster, whose "
            "address has no ://"
        )
    name, _, port = address.rpartition(":")
    if not name or not port.isdecimal():
        raise SettingError(f"{address!r} is no address of a Ray cluster, such as 10.0.0.1:6379")
    try:
        async with asyncio.timeout(_PATIENCE):
            _, writer = await asyncio.open_connection(name.strip("[]"), int(port))
        writer.close()
        await writer.wait_closed()
    except (OSError, OverflowError, TimeoutError) as error:
        raise SettingError(
            f"there is no Ray cluster at {address} ({error or 'no answer'}): {_HOW_TO_START}"
        ) from None
