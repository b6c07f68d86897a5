"""A sandbox whose program is the test itself, which says whatever it likes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence

from codeact_team.sandbox.base import Exit, Limits, Process, PythonIdentity, Sandbox
from codeact_team.sandbox.system.framing import frame
from codeact_team.session.protocol import Kind, ResultFrame
from codeact_team.session.shipping import payload

READY = frame(Kind.READY, b'{"interpreter": 1, "unguarded": null}')


def result(output: bytes = b"") -> bytes:
    """Says that the block has ended well."""
    ended = ResultFrame(1, 1, True, None, None, None, None, "", output, b"\0")
    return frame(Kind.RESULT, ended.pack())


RESULT = result()


class Stream(Process):
    """One end of a socket pair."""

    def __init__(self, own: socket.socket) -> None:
        own.setblocking(False)
        self._own = own

    async def read(self) -> bytes:
        try:
            return await asyncio.get_running_loop().sock_recv(self._own, 65536)
        except ConnectionError:
            return b""

    async def write(self, data: bytes) -> None:
        try:
            await asyncio.get_running_loop().sock_sendall(self._own, data)
        except OSError:
            return

    async def close_stdin(self) -> None:
        self._own.shutdown(socket.SHUT_WR)

    async def wait(self) -> Exit:
        return Exit(137)

    async def aclose(self) -> None:
        self._own.close()


class Liar(Sandbox):
    """Takes in the runner and says it is ready; from then on ``says`` is all that comes, then silence or the end.

    Args:
        says: What the program writes after it has been asked for something.
        ends: Whether the stream ends after that.
        greets: What it writes at first.
    """

    def __init__(self, says: bytes, *, ends: bool, greets: bytes = READY) -> None:
        self._says = says
        self._ends = ends
        self._greets = greets
        self._peer: socket.socket | None = None
        self._talking: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        return True

    @property
    def workspace(self) -> str:
        return "/tmp"

    @property
    def private(self) -> str:
        return "/tmp"

    @property
    def python(self) -> str:
        return "python3"

    async def python_identity(self) -> PythonIdentity:
        return PythonIdentity("nobody's", "")

    @property
    def limits(self) -> Limits:
        return {}

    async def _start(self) -> None:
        return

    async def stop(self) -> None:
        await self.kill()

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Process:
        raise NotImplementedError

    async def supervise(self, *, plain: bool = False) -> Process:
        own, self._peer = socket.socketpair()
        self._peer.setblocking(False)
        self._talking = asyncio.create_task(self._talk(self._peer))
        return Stream(own)

    async def say(self, data: bytes) -> None:
        """Write ``data`` now."""
        assert self._peer is not None
        await asyncio.get_running_loop().sock_sendall(self._peer, data)

    async def _talk(self, peer: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        size = len(payload())
        while size > 0:
            size -= len(await loop.sock_recv(peer, size))
        await loop.sock_sendall(peer, self._greets)
        if self._greets == READY:
            await loop.sock_recv(peer, 65536)
            await loop.sock_sendall(peer, self._says)
        if self._ends:
            peer.close()

    async def interrupt(self) -> None:
        return

    async def kill(self) -> None:
        if self._talking is not None:
            self._talking.cancel()
            await asyncio.gather(self._talking, return_exceptions=True)
        if self._peer is not None:
            self._peer.close()
