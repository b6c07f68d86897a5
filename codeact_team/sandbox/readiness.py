"""Waits until a descriptor can be read or written, in any event loop."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import sys
from collections.abc import Callable
from contextvars import Context


class _Arrival(asyncio.Future[None]):
    """A future of one waiting task, which continues at once when it is done, and not in the loop's next iteration."""

    _waiter: Callable[[asyncio.Future[None]], object] | None = None
    _context: Context | None = None

    def add_done_callback(
        self, fn: Callable[[asyncio.Future[None]], object], /, *, context: Context | None = None
    ) -> None:
        self._waiter, self._context = fn, context

    def arrive(self) -> None:
        """Continue the task. Only the loop itself may call this, when no task runs."""
        if not self.done():
            self.set_result(None)
            if self._waiter is not None and self._context is not None:
                self._context.run(self._waiter, self)

    def cancel(self, msg: object = None) -> bool:
        cancelled = super().cancel(msg)
        if cancelled and self._waiter is not None:
            self.get_loop().call_soon(self._waiter, self, context=self._context)
        return cancelled


class Readiness:
    """Lets tasks wait until one of several descriptors can be read. The descriptors stay the caller's.

    A loop in which a task has waited keeps watching the descriptors, because registering them takes longer than a wait. It
    stops when one of them can be read and no task waits.
    """

    def __init__(self, *fds: int) -> None:
        self._fds = fds
        self._registrations: dict[asyncio.AbstractEventLoop, _Registration] = {}

    async def wait(self) -> None:
        """Wait until one of them can be read, or is at its end."""
        loop = asyncio.get_running_loop()
        registration = self._registrations.get(loop) or self._register(loop)
        arrival = _Arrival(loop=loop)
        registration.waiting.add(arrival)
        try:
            await arrival
        finally:
            registration.waiting.discard(arrival)

    def close(self) -> None:
        """Stop all loops from watching them. Any thread may call this."""
        while self._registrations:
            _, registration = self._registrations.popitem()
            registration.end()

    def _register(self, loop: asyncio.AbstractEventLoop) -> _Registration:
        for other in [other for other in self._registrations if other.is_closed()]:
            self._registrations.pop(other).end()
        registration = _Registration(loop, self._fds, lambda: self._registrations.pop(loop, None))
        self._registrations[loop] = registration
        return registration


class _Registration:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, fds: tuple[int, ...], on_end: Callable[[], object]
    ) -> None:
        self.waiting: set[_Arrival] = set()
        self._loop = loop
        self._on_end = on_end
        # a loop has one reader for each descriptor, and the number may belong to another file when the loop forgets it
        self._copies = [os.dup(fd) for fd in fds]
        for copy in self._copies:
            # otherwise the context of the first task that waits would live on with it
            Context().run(loop.add_reader, copy, self._wake)

    def end(self) -> None:
        if self._loop.is_closed() or not self._loop.is_running() or self._loop is _running_loop():
            self._forget()
        else:
            self._loop.call_soon_threadsafe(self._forget)

    def _wake(self) -> None:
        if not self.waiting:
            self._on_end()
            self._forget()
            return
        waiting, self.waiting = self.waiting, set()
        for arrival in waiting:
            arrival.arrive()

    def _forget(self) -> None:
        is_open = not self._loop.is_closed()
        while self._copies:
            copy = self._copies.pop()
            if is_open:
                self._loop.remove_reader(copy)
            os.close(copy)
        # tasks that still wait find out themselves
        for arrival in self.waiting if is_open else ():
            self._loop.call_soon(arrival.arrive)


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


class Hangup:
    """Tells when the other end of a stream has stopped writing, however much of it is left unread. It does on Linux only.

    Attributes:
        fds: What can be read then, for a :class:`Readiness`; empty on other systems.
    """

    def __init__(self, stream: socket.socket) -> None:
        self._epoll = None
        self.fds: tuple[int, ...] = ()
        if sys.platform == "linux":
            self._epoll = select.epoll()
            self._epoll.register(stream, select.EPOLLRDHUP)
            self.fds = (self._epoll.fileno(),)

    @property
    def was_seen(self) -> bool:
        return self._epoll is not None and bool(self._epoll.poll(0))

    def close(self) -> None:
        if self._epoll is not None:
            self._epoll.close()


async def readable(fd: int) -> None:
    """Wait once until ``fd`` can be read, or is at its end."""
    readiness = Readiness(fd)
    try:
        await readiness.wait()
    finally:
        readiness.close()


async def writable(fd: int) -> None:
    """Wait once until ``fd`` can be written, or its reader has ended."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    # two tasks may wait for the same descriptor
    copy = os.dup(fd)
    try:
        loop.add_writer(copy, ready.set)
        await ready.wait()
    finally:
        loop.remove_writer(copy)
        os.close(copy)
