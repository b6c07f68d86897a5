"""A program in a container as the host holds it: the engine's attached stream."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable

from docker.errors import DockerException, NotFound

from codeact_team.aio import to_the_end
from codeact_team.sandboxes.base import Exit, Process
from codeact_team.sandboxes.docker.engine import Client
from codeact_team.sandboxes.docker.stream import Demultiplexer, MarkedStream

logger = logging.getLogger(__name__)

_CHUNK = 256 * 1024
_KILLED = 137
_SETTLING_TIME = 0.1
"""Seconds by which the engine may report a container's end later than the end of what runs inside."""
_GONE = "the container ended: it was killed or removed, or ran out of memory as a whole"


class DockerProcess(Process):
    """A program started in a running container, over the engine's attached stream.

    Args:
        client: The engine.
        container: The container's id.
        exec_id: The engine's name for the program.
        stream: Its stdin and output, in the engine's frames.
        mark: What the shell around it writes when it has ended; ``None`` where there is no such shell.
        end_rest: Ends everything that still runs in the container.
    """

    def __init__(
        self,
        client: Client,
        container: str,
        exec_id: str,
        stream: socket.socket,
        mark: bytes | None,
        end_rest: Callable[[], Awaitable[None]],
    ) -> None:
        self._client = client
        self._container = container
        self._exec_id = exec_id
        self._socket = stream
        self._frames = Demultiplexer()
        self._output = None if mark is None else MarkedStream(mark)
        self._end_rest = end_rest
        self._cut = False

    async def read(self) -> bytes:
        marked = self._output
        while not (self._cut or (marked is not None and marked.ended)):
            try:
                data = await receive(self._socket, _CHUNK)
            except ConnectionError:
                data = b""
            if not data:
                self._cut = True
                return b"" if marked is None else marked.finish()
            output = self._frames.feed(data)
            if output := output if marked is None else marked.feed(output):
                return output
        return b""

    async def write(self, data: bytes) -> None:
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket, data)
        except ConnectionError as error:
            logger.debug("stdin not taken: %s", error)

    async def close_stdin(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            logger.debug("stdin not closed: %s", error)

    async def wait(self) -> Exit:
        match None if self._output is None else self._output.numbers:
            case (code, oom_kills, fork_failures, left):
                ending = Exit(code & 0xFF, oom_kills=max(0, oom_kills), fork_failures=max(0, fork_failures))
            case _:
                ending = await to_the_end(asyncio.to_thread(self._inspect))
                left = 1
        if left > 0 and ending.lost is None:
            # it could disturb, or forge, what the next program writes
            await self._end_rest()
        return ending

    def _inspect(self) -> Exit:
        """How a program ended whose shell was killed, too. Blocks."""
        time.sleep(_SETTLING_TIME)
        try:
            state = self._client.inspect_container(self._container)["State"]
            if not state["Running"]:
                reason = "the container ran out of memory as a whole" if state.get("OOMKilled") else _GONE
                return Exit(_KILLED, lost=reason)
            code = self._client.exec_inspect(self._exec_id)["ExitCode"]
        except NotFound:
            return Exit(_KILLED, lost=_GONE)
        except (DockerException, OSError) as error:
            return Exit(_KILLED, lost=f"the container engine does not answer any more: {error}")
        finally:
            # the sandbox may have closed it before; this opened it again
            self._client.close()
        # the memory limit takes the largest, never this small shell
        return Exit(_KILLED if code is None else code & 0xFF, oom_kills=0)

    async def aclose(self) -> None:
        self._socket.close()


async def receive(stream: socket.socket, size: int) -> bytes:
    """Like the event loop's ``sock_recv``, but a cancellation that comes with the data does not lose the data."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            return stream.recv(size)
        except BlockingIOError:
            fd, ready = stream.fileno(), loop.create_future()
            loop.add_reader(fd, _resolve, ready)
            try:
                await ready
            finally:
                loop.remove_reader(fd)


def _resolve(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
