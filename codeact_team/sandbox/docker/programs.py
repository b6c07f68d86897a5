"""A program in a container, over a stream of the engine's."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress

from codeact_team.sandbox.base import KILLED, Exit, Process
from codeact_team.sandbox.docker.streams import Demultiplexer
from codeact_team.sandbox.readiness import Hangup, Readiness, readable

logger = logging.getLogger(__name__)

_CHUNK = 256 * 1024
_LAST_OUTPUT_TIME = 1.0
"""Seconds in which the output of a program has to end whose container has."""


class ContainerProcess(Process):
    """A program in a running container.

    Args:
        stream: The stream to and from it. It is closed with the program.
        find_ending: Finds out how it, or its container, has ended.
        hangup: Tells of the end of the container, and is closed with the program; ``None`` if the stream ends with that.
        frames: Takes the engine's frames apart; the one that has begun with it, if there is one.
        unread: Output that has come already.
    """

    def __init__(
        self,
        stream: socket.socket,
        find_ending: Callable[[], Awaitable[Exit]],
        hangup: Hangup | None = None,
        frames: Demultiplexer | None = None,
        unread: bytes = b"",
    ) -> None:
        self._socket = stream
        self._find_ending = find_ending
        self._hangup = hangup
        self._readiness = Readiness(stream.fileno(), *(() if hangup is None else hangup.fds))
        self._frames = frames or Demultiplexer()
        self._unread = unread
        self._cut = False
        self.is_killed: bool = False
        """Whether it was ended from here."""
        self.lost: str | None = None
        """The reason if the sandbox is known to be gone."""

    def cut(self) -> None:
        """End all reading and writing, whatever the engine does."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    async def read(self) -> bytes:
        if unread := self._unread:
            self._unread = b""
            return unread
        # the sandbox may have closed it meanwhile
        while not self._cut and self._socket.fileno() >= 0:
            try:
                data = self._socket.recv(_CHUNK)
            except BlockingIOError:
                await self._readable()
                continue
            except ConnectionError:
                data = b""
            if not data:
                self._readiness.close()
                self._cut = True
            elif output := self._frames.feed(data):
                return output
        return b""

    async def _readable(self) -> None:
        """Wait for output. Cut off what does not end with the container: with gVisor, the engine leaves some streams open."""
        await self._readiness.wait()
        if self._hangup is not None and self._hangup.was_seen:
            try:
                async with asyncio.timeout(_LAST_OUTPUT_TIME):
                    await readable(self._socket.fileno())
            except TimeoutError:
                self.cut()

    async def write(self, data: bytes) -> None:
        try:
            with suppress(BlockingIOError):
                data = data[self._socket.send(data) :]
            if data:
                await asyncio.get_running_loop().sock_sendall(self._socket, data)
        except ConnectionError as error:
            logger.debug("stdin not taken: %s", error)

    async def close_stdin(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            logger.debug("stdin not closed: %s", error)

    async def wait(self) -> Exit:
        if self.lost is not None or self.is_killed:
            return Exit(KILLED, lost=self.lost)
        return await self._find_ending()

    async def aclose(self) -> None:
        self._readiness.close()
        if self._hangup is not None:
            self._hangup.close()
        self._socket.close()
