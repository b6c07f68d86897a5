"""A program in a container as the host holds it: the engine's attached stream."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable
from contextlib import suppress
from typing import Protocol

from docker.errors import DockerException, NotFound

from codeact_team.sandboxes.base import Exit, Process
from codeact_team.sandboxes.docker.engine import Client, ask
from codeact_team.sandboxes.docker.stream import Demultiplexer, MarkedStream
from codeact_team.sandboxes.readiness import Readiness

logger = logging.getLogger(__name__)

_CHUNK = 256 * 1024
_KILLED = 137
_SETTLING_TIME = 0.1
"""Seconds by which the engine may report a container's end later than the end of what runs inside."""
_INSPECTION_TIME = 1.0
"""Seconds that the engine gets to tell how a program has ended."""
_GONE = "the container ended: it was killed or removed, or ran out of memory as a whole"


class EndRest(Protocol):
    """Ends everything that still runs in a container; ``is_left`` if something is known to."""

    def __call__(self, *, is_left: bool) -> Awaitable[None]: ...


class DockerProcess(Process):
    """A program started in a running container, over the engine's attached stream.

    The shell around it writes ``mark`` when it has ended; without a mark, there is no such shell.
    """

    def __init__(
        self,
        client: Client,
        container: str,
        exec_id: str,
        stream: socket.socket,
        mark: bytes | None,
        end_rest: EndRest,
    ) -> None:
        self._client = client
        self._container = container
        self._exec_id = exec_id
        self._socket = stream
        self._readiness = Readiness(stream.fileno())
        self._frames = Demultiplexer()
        self._output = None if mark is None else MarkedStream(mark)
        self._end_rest = end_rest
        self._cut = False
        self.lost: str | None = None
        """Why the sandbox is gone, where that is known here."""

    def cut(self) -> None:
        """Let whoever reads or writes know that there is no more, whatever the engine says."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    async def read(self) -> bytes:
        marked = self._output
        while not (self._cut or (marked is not None and marked.ended)):
            try:
                data = self._socket.recv(_CHUNK)
            except BlockingIOError:
                await self._readiness.wait()
                continue
            except ConnectionError:
                data = b""
            if not data:
                self._readiness.close()
                self._cut = True
                return b"" if marked is None else marked.finish()
            output = self._frames.feed(data)
            if output := output if marked is None else marked.feed(output):
                return output
        return b""

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
        match None if self._output is None else self._output.numbers:
            case (code, oom_kills, fork_failures, microseconds, left):
                ending = Exit(
                    code & 0xFF,
                    oom_kills=max(0, oom_kills),
                    fork_failures=max(0, fork_failures),
                    processor_seconds=None if microseconds < 0 else microseconds / 1_000_000,
                )
            case _:
                ending = await self._find_ending()
                left = 1
        if ending.lost is None:
            # it could disturb, or forge, what the next program writes; what the shell says, the program may have said
            await self._end_rest(is_left=left > 0)
        return ending

    async def _find_ending(self) -> Exit:
        if self.lost is not None:
            return Exit(_KILLED, lost=self.lost)
        try:
            async with asyncio.timeout(_INSPECTION_TIME):
                return await ask(self._inspect)
        except TimeoutError:
            return Exit(_KILLED, lost="the container engine does not answer any more")

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
        self._readiness.close()
        self._socket.close()
