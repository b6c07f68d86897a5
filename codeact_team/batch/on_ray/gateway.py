"""The program that connects a driver with a Ray cluster. It is a process of its own, as Ray takes over the one it is in.

There Ray prints to standard output, sets handlers of signals, and ends the process when the cluster is gone. All that is decided
here is how a worker is started: as an actor, on any node that has a processor for it, if possible on one with few others. Bytes
are passed on in both directions, and not looked at.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from codeact_team.batch.messages import read_frame
from codeact_team.batch.on_ray import frames
from codeact_team.batch.on_ray.frames import Frame, Kind
from codeact_team.batch.on_ray.node import WorkerPlace
from codeact_team.batch.processes import GRACE, end_with_parent, opened, own_streams

# its own types leave much open
_ray: Any = ray

_AHEAD = 32
"""Pieces that a worker has written and nobody has read yet."""
_STORE = 80 << 20
"""Bytes of a store for objects, about the least that Ray allows: nothing of ours is put there."""
_LOCAL = "local"
_UNIMPORTED = "failed to import"
"""What Ray says of an actor whose class is not on its node."""


class _RemoteWorker:
    """A worker on a node.

    Args:
        number: Its own.
        send: Sends a frame to the driver.
    """

    def __init__(self, number: int, send: Callable[[Frame], None]) -> None:
        self._send = partial(_send, send, number)
        self._input: asyncio.Queue[bytes] = asyncio.Queue()
        self._place: Any = None
        self._ending = False
        self._working = asyncio.create_task(self._work())

    def write(self, data: bytes) -> None:
        """Let the worker read something."""
        self._input.put_nowait(data)

    async def end(self) -> None:
        """End the worker, in order if it is there."""
        self._ending = True
        if self._place is not None:
            with suppress(RayError, TimeoutError):
                await asyncio.wait_for(_result(self._place.end.remote()), 2 * GRACE)
        self._working.cancel()
        await asyncio.wait({self._working})
        self._send(Kind.END)

    async def _work(self) -> None:
        actor: Any = (
            _ray.remote(WorkerPlace)
            .options(num_cpus=1, scheduling_strategy="SPREAD", max_restarts=0, max_task_retries=0)
            .remote()
        )
        node = "its node"
        writing: asyncio.Task[None] | None = None
        try:
            # may take as long as no node has room
            theirs, node = await _result(actor.start.remote())
            if theirs != (ours := version("codeact-team")):
                self._fail(
                    f"the node {node} has codeact-team {theirs}, and this machine has {ours}: both need the same"
                )
                return
            self._place = actor
            self._send(Kind.START, node)
            writing = asyncio.create_task(self._write(actor))
            pieces = actor.read.options(
                num_returns="streaming", _generator_backpressure_num_objects=_AHEAD
            ).remote()
            async for piece in pieces:
                self._send(Kind.DATA, await piece)
            self._lose(f"its worker on {node} has died")
        except RayTaskError as error:
            self._fail(f"no worker starts on a node: {error.cause!r}")
        except RayActorError as error:
            if _UNIMPORTED in str(error):
                self._fail(
                    "a node has no codeact-team: install it on all of them, in the Python that Ray runs there"
                )
            else:
                self._lose(f"its worker on {node} was lost")
        finally:
            self._place = None
            if writing is not None:
                writing.cancel()
            _ray.kill(actor)

    async def _write(self, actor: Any) -> None:
        while True:
            data = await self._input.get()
            while not self._input.empty() and len(data) < frames.PIECE:
                data += self._input.get_nowait()
            # one after the other: calls that are under way together may overtake each other
            with suppress(RayError):
                await _result(actor.write.remote(data))

    def _lose(self, reason: str) -> None:
        if not self._ending:
            self._send(Kind.LOST, reason)

    def _fail(self, reason: str) -> None:
        self._send(Kind.FAILED, reason)


def _send(send: Callable[[Frame], None], worker: int, kind: Kind, data: str | bytes = b"") -> None:
    send(Frame(worker, kind, data.encode() if isinstance(data, str) else data))


async def _result(reference: Any) -> Any:
    return await reference


async def _serve(incoming: int, outgoing: int) -> None:
    reader, writer = await opened(incoming, outgoing)
    if (place := await read_frame(reader)) is None:
        return
    end_with_parent(place)
    if (begin := await read_frame(reader)) is None:
        return
    send = partial(_write_to, writer)
    try:
        _connect(begin["address"])
    except (Exception, SystemExit) as error:
        # Ray ends the process where it gives up
        send(Frame(0, Kind.FAILED, str(error).encode()))
        await writer.drain()
        return
    nodes = sum(node["Alive"] and node["Resources"].get("CPU", 0) >= 1 for node in _ray.nodes())
    send(Frame(0, Kind.CONNECTED, str(nodes).encode()))
    await _pass_on(reader, writer, send)
    _ray.shutdown()
    writer.close()


def _write_to(writer: asyncio.StreamWriter, frame: Frame) -> None:
    writer.write(frame.encode())


def _connect(address: str) -> None:
    settings: dict[str, Any] = {}
    if address == _LOCAL:
        # it is ours, so nobody else is told of it
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        settings = {"include_dashboard": False, "object_store_memory": _STORE}
    _ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **settings)


async def _pass_on(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, send: Callable[[Frame], None]
) -> None:
    workers: dict[int, _RemoteWorker] = {}
    ending: set[asyncio.Task[None]] = set()
    while (frame := await frames.read(reader)) is not None:
        match frame.kind:
            case Kind.START:
                workers[frame.worker] = _RemoteWorker(frame.worker, send)
            case Kind.END:
                ending.add(task := asyncio.create_task(workers.pop(frame.worker).end()))
                task.add_done_callback(ending.discard)
            case _:
                # what is sent to the dead is lost
                if (worker := workers.get(frame.worker)) is not None:
                    worker.write(frame.data)
        await writer.drain()
    await asyncio.gather(*ending, *(worker.end() for worker in workers.values()))


def main() -> None:
    """Pass on what a driver and its workers say, until the driver has ended."""
    asyncio.run(_serve(*own_streams(quiet=True)))


if __name__ == "__main__":
    main()
