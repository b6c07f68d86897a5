"""The process that connects a driver with a Ray cluster, and the actor that is a worker on a node.

Ray takes over the process that it is in: it prints to standard output, handles signals, and aborts the process when the cluster
is gone. So the driver starts this program, which passes messages on. To the gateway go ``address`` once, and then for each
``worker``, by its number, ``start``, ``message`` and ``end``. From it come ``connected`` or ``failed`` once, and then for each
worker ``message``, ``lost`` or ``failed``, and ``ended``.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from threading import Thread
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util import get_node_ip_address  # pyright: ignore[reportUnknownVariableType]

from codeact_team.core.child_process import (
    GRACE,
    Message,
    PipeChannel,
    connect_to_parent,
    take_standard_streams,
)

# its own types leave much open
_ray: Any = ray

_AHEAD = 32
"""Messages of a worker that Ray holds until the gateway takes them."""
_STORE = 80 << 20
"""Bytes of Ray's store for objects, about the least that it allows: messages are too small to need it."""
_LOCAL = "local"
_UNIMPORTED = "failed to import"
"""Ray's words about an actor whose class is not on its node."""


class NodeWorker:
    """A worker on a node, in the process of a Ray actor, whose methods Ray calls in its own event loop.

    It is also the worker's channel to its driver.
    """

    def __init__(self) -> None:
        # a loop of asyncio, in a thread of its own: Ray's loop is uvloop if that is installed
        self._runner = asyncio.Runner(loop_factory=asyncio.SelectorEventLoop)
        self._loop = self._runner.get_loop()
        self._thread = Thread(target=self._serve)
        self._incoming: asyncio.Queue[Message | None] = asyncio.Queue()
        self._outgoing: asyncio.Queue[Message | None] = asyncio.Queue()

    async def start(self) -> tuple[str, str]:
        """Start the worker; the version of this package on the node, and the address of the node."""
        self._ray_loop = asyncio.get_running_loop()
        self._thread.start()
        return version("codeact-team"), str(get_node_ip_address())  # pyright: ignore[reportUnknownArgumentType]

    async def deliver(self, message: Message | None) -> None:
        """Deliver a message of the driver; ``None`` is the end. Does nothing where the worker has ended."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._incoming.put_nowait, message)

    async def messages(self) -> AsyncGenerator[Message, None]:
        """The messages to the driver, until the worker ends."""
        while (message := await self._outgoing.get()) is not None:
            yield message
            self._outgoing.task_done()

    async def end(self) -> None:
        """Let the worker end in order, and wait for that."""
        await self.deliver(None)
        await asyncio.to_thread(self._thread.join)

    def send(self, message: Message | None) -> None:
        self._ray_loop.call_soon_threadsafe(self._outgoing.put_nowait, message)

    async def drained(self) -> None:
        taken = asyncio.run_coroutine_threadsafe(self._outgoing.join(), self._ray_loop)
        await asyncio.wrap_future(taken)

    async def receive(self) -> Message | None:
        return await self._incoming.get()

    def _serve(self) -> None:
        # the gateway, which imports this module, too, does without what workers need
        from codeact_team.batch.worker_process import serve

        try:
            with self._runner:
                self._runner.run(serve(self))
        finally:
            self.send(None)


class _Node:
    """A worker on a node, for the gateway; ``send`` sends the driver a message about it."""

    def __init__(self, send: Callable[[Message], None]) -> None:
        self._send = send
        self.messages: asyncio.Queue[Message] = asyncio.Queue()
        """Those of the driver, which pass on once the worker has started."""
        self._actor: Any = None
        self._working = asyncio.create_task(self._work())

    async def end(self) -> None:
        """End the worker, in order if it has started."""
        if self._actor is not None:
            with suppress(RayError, TimeoutError):
                await asyncio.wait_for(_result(self._actor.end.remote()), 2 * GRACE)
        self._working.cancel()
        await asyncio.wait({self._working})
        self._send({"ended": True})

    async def _work(self) -> None:
        # on any node with a free processor, if possible on one with few workers; the driver replaces lost workers itself
        options = {"num_cpus": 1, "scheduling_strategy": "SPREAD", "max_concurrency": 4}
        actor = _ray.remote(NodeWorker).options(**options, max_restarts=0, max_task_retries=0).remote()
        node = "its node"
        passing: asyncio.Task[None] | None = None
        try:
            # waits as long as no node has room
            theirs, node = await _result(actor.start.remote())
            if theirs != (ours := version("codeact-team")):
                problem = f"the node {node} has codeact-team {theirs}, and this machine has {ours}: both need the same"
                self._send({"failed": problem})
                return
            self._actor = actor
            passing = asyncio.create_task(self._pass_messages(actor))
            messages = actor.messages.options(
                num_returns="streaming", _generator_backpressure_num_objects=_AHEAD
            ).remote()
            async for message in messages:
                self._send({"message": await message})
            self._send({"lost": f"its worker on {node} has died"})
        except RayTaskError as error:
            self._send({"failed": f"no worker starts on a node: {error.cause!r}"})
        except RayActorError as error:
            if _UNIMPORTED in str(error):
                problem = (
                    "a node has no codeact-team: install it on all of them, in the Python that Ray runs there"
                )
                self._send({"failed": problem})
            else:
                self._send({"lost": f"its worker on {node} was lost"})
        finally:
            self._actor = None
            if passing is not None:
                passing.cancel()
            _ray.kill(actor)

    async def _pass_messages(self, actor: Any) -> None:
        while True:
            message = await self.messages.get()
            # one after the other: calls that are under way together may overtake each other
            with suppress(RayError):
                await _result(actor.deliver.remote(message))


async def _result(reference: Any) -> Any:
    return await reference


async def _serve(incoming: int, outgoing: int) -> None:
    channel, _ = await connect_to_parent(incoming, outgoing)
    if (begin := await channel.receive()) is None:
        return
    settings: dict[str, Any] = {}
    if begin["address"] == _LOCAL:
        # the cluster is of this batch alone, and need not be reported to Ray's developers
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        settings = {"include_dashboard": False, "object_store_memory": _STORE}
    try:
        _ray.init(begin["address"], log_to_driver=False, logging_level=logging.ERROR, **settings)
    except (Exception, SystemExit) as error:
        # Ray ends the process where it gives up
        channel.send({"failed": str(error)})
        await channel.close_output()
        return
    nodes = sum(node["Alive"] and node["Resources"].get("CPU", 0) >= 1 for node in _ray.nodes())
    channel.send({"connected": nodes})
    await _pass_on(channel)
    _ray.shutdown()
    await channel.close_output()


async def _pass_on(channel: PipeChannel) -> None:
    """Pass messages on, until the driver has no more; then end all workers."""
    workers: dict[int, _Node] = {}
    ending: set[asyncio.Task[None]] = set()

    def send(number: int, message: Message) -> None:
        channel.send({"worker": number, **message})

    while (message := await channel.receive()) is not None:
        number = message["worker"]
        if "start" in message:
            workers[number] = _Node(partial(send, number))
        elif "end" in message:
            ending.add(task := asyncio.create_task(workers.pop(number).end()))
            task.add_done_callback(ending.discard)
        elif (worker := workers.get(number)) is not None:
            worker.messages.put_nowait(message["message"])
        await channel.drained()
    await asyncio.gather(*ending, *(worker.end() for worker in workers.values()))


def main() -> None:
    """Pass messages on between a driver and its workers, until the driver ends."""
    asyncio.run(_serve(*take_standard_streams(quiet=True)))
