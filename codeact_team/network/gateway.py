"""The gateway: decides, in this process, what the proxy may send, and starts the proxy.

It has an event loop and a thread of its own, as the loops of those who run code come and go. It starts with the first
sandbox that has a way out, and ends with the last.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
from collections.abc import Coroutine, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from codeact_team.core.aio import to_the_end
from codeact_team.core.child_process import ChildProcess, ProcessLostError
from codeact_team.errors import CodeActTeamError, SandboxError
from codeact_team.network.addresses import AddressRefusedError, resolve
from codeact_team.network.authority import Authority, trusted_bundle
from codeact_team.network.control import (
    BACKLOG,
    Closed,
    ControlMessage,
    Denied,
    EgressAsked,
    EgressEnded,
    Noted,
    Proceed,
    Ready,
    Refused,
    read_message,
)
from codeact_team.network.requests import RequestOutcome
from codeact_team.network.way import EgressPolicy, Way
from codeact_team.sandbox.system.framing import send_with_descriptors

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MODULE = "codeact_team.network.process"
_ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
"""The proxy's variables: those of this process may name other certificates and proxies."""
_MOST_STARTS = 5
"""So often the proxy is started without having asked anything before it died."""
_LOST = "the proxy has died while this was under way"


class _Gateway:
    """What all ways out of this process have in common. Its methods run in its own loop, but for :meth:`call`."""

    def __init__(self) -> None:
        self.users = 0
        self.process: int = os.getpid()
        """The process whose thread it has: forks of that have none."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="codeact-team-egress", daemon=True
        )
        self._thread.start()
        self._numbers = count(1)
        self._ways: dict[int, Way] = {}
        self._listening: dict[int, socket.socket] = {}
        self._starting = asyncio.Lock()
        self._child: ChildProcess | None = None
        self._reader: asyncio.Task[None] | None = None
        self._starts = 0
        self._deciding: dict[int, asyncio.Task[None]] = {}
        """By the number of the question."""
        self._under_way: dict[int, asyncio.Future[RequestOutcome]] = {}
        """What the proxy was allowed to send, by the number of the question."""

    async def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something in the loop of the gateway, from any other."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def end(self) -> None:
        """End the thread, with what still goes on for nobody. Blocks."""
        asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel_all(self) -> None:
        """Such as looking up names."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def open(
        self, policy: EgressPolicy, credentials: Sequence[Mapping[str, Any]], extra_ca: Sequence[Path]
    ) -> Way:
        """Open a way; see :func:`open_way`."""
        trusted = await asyncio.to_thread(trusted_bundle, extra_ca)
        way = Way(next(self._numbers), policy, credentials, trusted, Authority.create(), self)
        try:
            listening = socket.socket(socket.AF_UNIX)
            self._listening[way.number] = listening
            _bind(listening, way.socket)
            # the code's user is another one, whom the token keeps out
            os.chmod(way.socket, 0o666)
            listening.listen(BACKLOG)
            # of two that are opened at once, one starts the proxy
            async with self._starting:
                self._ways[way.number] = way
                if self._child is None:
                    await self._start()
                else:
                    self._introduce(self._child, way)
        except BaseException:
            await self.close(way)
            raise
        return way

    async def close(self, way: Way) -> None:
        """End a way with all its connections, and the proxy with the last one."""
        self._ways.pop(way.number, None)
        if (listening := self._listening.pop(way.number, None)) is not None:
            listening.close()
        self.send(Closed(way.number))
        way.remove()
        async with self._starting:
            if self._ways:
                return
            if self._reader is not None:
                self._reader.cancel()
                await asyncio.wait({self._reader})
            if self._child is not None:
                self._child.kill()
                await self._lose(self._child)

    def send(self, message: ControlMessage) -> None:
        """Tell the proxy something, if it lives."""
        if self._child is not None:
            self._child.send(message.to_message())

    async def _start(self) -> None:
        """Start the proxy, and have it take the connections of all sandboxes. Raises a :class:`SandboxError`."""
        self._starts += 1
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        child: ChildProcess | None = None
        try:
            with theirs:
                child = await ChildProcess.start(
                    _MODULE, inherited=[theirs.fileno()], environment=_ENVIRONMENT
                )
            if not isinstance(read_message(await child.receive()), Ready):
                raise SandboxError("the proxy of `egress` does not say that it is ready")
        except BaseException as error:
            ours.close()
            if child is not None:
                child.kill()
                await to_the_end(child.close())
            if isinstance(error, CodeActTeamError | ProcessLostError) and not isinstance(error, SandboxError):
                raise SandboxError(f"the proxy of `egress` cannot be started: {error}") from error
            raise
        self._sockets = ours
        self._child = child
        self._reader = asyncio.ensure_future(self._read(child))
        for number, way in self._ways.items():
            if number in self._listening:
                self._introduce(child, way)

    def _introduce(self, child: ChildProcess, way: Way) -> None:
        # before the message, which says that it is there
        send_with_descriptors(self._sockets, b"\0", [self._listening[way.number].fileno()])
        child.send(way.opened.to_message())

    async def _read(self, child: ChildProcess) -> None:
        """Take what the proxy says, until it dies; then start another one."""
        try:
            while True:
                self._take(read_message(await child.receive()))
        except ProcessLostError:
            logger.warning("the proxy of `egress` has died, and is started again; its connections are lost")
        except Exception:
            logger.exception("the proxy of `egress` is started again, as it has said something wrong")
            child.kill()
        await self._lose(child)
        if self._starts < _MOST_STARTS:
            try:
                async with self._starting:
                    await self._start()
                return
            except SandboxError as error:
                logger.error("%s", error)
        else:
            logger.error("the proxy of `egress` has died %d times in a row", self._starts)
        # else connections would wait for ever
        logger.error("sandboxes with `egress` reach nothing any more")
        while self._listening:
            self._listening.popitem()[1].close()

    async def _lose(self, child: ChildProcess) -> None:
        """End what goes on through a proxy that has died."""
        self._child = None
        self._sockets.close()
        deciding = [*self._deciding.items()]
        for number, task in deciding:
            if (ended := self._under_way.get(number)) is None:
                task.cancel()
            elif not ended.done():
                ended.set_result(RequestOutcome(error=_LOST, is_kept=False))
        await asyncio.gather(*(task for _, task in deciding), return_exceptions=True)
        await child.close()

    def _take(self, message: ControlMessage) -> None:
        match message:
            case EgressAsked():
                self._starts = 0
                task = asyncio.ensure_future(self._decide(message))
                self._deciding[message.number] = task
                task.add_done_callback(lambda _: self._deciding.pop(message.number, None))
            case Refused():
                if (way := self._ways.get(message.sandbox)) is not None:
                    way.refused(message)
            case EgressEnded():
                self._end(message)
            case _:
                raise ValueError(f"the proxy has sent {message}")

    def _end(self, message: EgressEnded) -> None:
        if (ended := self._under_way.get(message.number)) is None or ended.done():
            # whoever waited for it is gone, or it was not even decided
            if (deciding := self._deciding.get(message.number)) is not None:
                deciding.cancel()
            self.send(Noted(message.number))
            return
        ended.set_result(
            RequestOutcome(
                status=message.status,
                headers=[(name, value) for name, value in message.headers],
                content=message.content,
                # an answer as a whole, or an error in its place
                is_kept=message.status is None
                if message.error is not None
                else message.status is not None and message.is_whole,
                sent=message.sent,
                received=message.received,
                error=message.error,
            )
        )

    async def _decide(self, asked: EgressAsked) -> None:
        reply: ControlMessage
        if (way := self._ways.get(asked.sandbox)) is None:
            reply = Denied(asked.number, "the sandbox has ended")
        else:
            try:
                reply = await way.decide(asked)
            except Exception:
                logger.exception("a request could not be decided, so it is denied")
                reply = Denied(asked.number, "whether it is allowed could not be found out", 500)
        self.send(reply)

    async def proceed(self, asked: EgressAsked) -> RequestOutcome:
        """Have the proxy send something that is allowed, and wait for its end."""
        try:
            networks = self._ways[asked.sandbox].policy.rules.networks(asked.host, asked.port)
            addresses = await resolve(asked.host, asked.port, networks)
        except AddressRefusedError as error:
            return RequestOutcome(status=403, error=str(error), is_sent=False)
        except OSError as error:
            return RequestOutcome(status=502, error=str(error), is_sent=False)
        ended = self._under_way[asked.number] = asyncio.get_running_loop().create_future()
        try:
            self.send(Proceed(asked.number, addresses))
            return await ended
        finally:
            del self._under_way[asked.number]


def _bind(listening: socket.socket, path: Path) -> None:
    """Bind a socket, in a directory whose path may be longer than that of a socket."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listening.bind(f"/proc/self/fd/{directory}/{path.name}" if sys.platform == "linux" else str(path))
    finally:
        os.close(directory)


_lock = threading.Lock()
_current: _Gateway | None = None


async def open_way(
    policy: EgressPolicy, credentials: Sequence[Mapping[str, Any]] = (), *, extra_ca: Sequence[Path] = ()
) -> Way:
    """Open a way out for one sandbox. Whoever does has to close it by :func:`close_way`.

    Args:
        policy: What may be reached.
        credentials: The credentials with their values, as :func:`~.secrets.with_values` writes them.
        extra_ca: Files with more certificates by which servers may prove themselves.

    Raises:
        SandboxError: If the proxy cannot be started; a :class:`SettingError` if a certificate or a secret is none.
    """
    global _current
    with _lock:
        if _current is None or _current.process != os.getpid():
            _current = _Gateway()
        gateway = _current
        gateway.users += 1
    try:
        return await gateway.call(gateway.open(policy, credentials, extra_ca))
    except BaseException:
        await to_the_end(_release(gateway))
        raise


async def close_way(way: Way) -> None:
    """Close a way, with all connections through it."""
    gateway = way.passing
    assert isinstance(gateway, _Gateway), "it has opened the way"
    try:
        await gateway.call(gateway.close(way))
    finally:
        await to_the_end(_release(gateway))


async def _release(gateway: _Gateway) -> None:
    global _current
    with _lock:
        gateway.users -= 1
        if gateway.users:
            return
        if _current is gateway:
            _current = None
    await asyncio.to_thread(gateway.end)
