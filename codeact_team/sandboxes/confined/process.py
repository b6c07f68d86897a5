"""A confined program as the host holds it: three pipes."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from codeact_team.sandboxes.base import Exit, Process

_CHUNK = 1 << 16
_KILLED = 128 + 9


class ConfinedProcess(Process):
    """A program whose end the supervisor reports through a pipe, after it has ended all that the program forked.

    That pipe stays open until then, also for the sandbox, which must know whether something runs.
    """

    def __init__(self) -> None:
        stdin, self._stdin = os.pipe()
        self._output, output = os.pipe()
        self._status, status = os.pipe()
        self.inner_fds = [stdin, output, status]
        """The ends that belong to the program and its supervisor, until they are handed over."""
        for fd in (self._stdin, self._output, self._status):
            os.set_blocking(fd, False)
        self._open = {self._stdin, self._output, self._status}
        self._exit: Exit | None = None

    @property
    def ended(self) -> bool:
        """Whether the program, and all that it has forked, has ended."""
        if self._exit is None and self._status in self._open:
            with suppress(BlockingIOError):
                self._exit = _parse_exit(os.read(self._status, _CHUNK))
                self._close(self._status)
        return self._exit is not None

    async def read(self) -> bytes:
        while True:
            data = self._read_now()
            if not data and self.ended:
                # what the program wrote before its end is in the pipe by then
                return self._read_now() or b""
            if data:
                return data
            closed = data is not None
            await readable(self._status) if closed else await readable(self._status, self._output)

    def _read_now(self) -> bytes | None:
        """What is there; ``None`` if nothing is yet, and nothing if nothing will be."""
        try:
            return os.read(self._output, _CHUNK)
        except BlockingIOError:
            return None

    async def write(self, data: bytes) -> None:
        left = memoryview(data)
        # EPIPE: nobody is left to read it
        with suppress(BrokenPipeError):
            while left and self._stdin in self._open:
                try:
                    left = left[os.write(self._stdin, left) :]
                except BlockingIOError:
                    await writable(self._stdin)

    async def close_stdin(self) -> None:
        self._close(self._stdin)

    async def wait(self) -> Exit:
        while not self.ended:
            await readable(self._status)
        assert self._exit is not None
        return self._exit

    async def aclose(self) -> None:
        self._close(self._stdin)
        self._close(self._output)

    def close_inner(self) -> None:
        """Close the ends that belong to the program, once the supervisor has them."""
        for fd in self.inner_fds:
            os.close(fd)
        self.inner_fds = []

    def _close(self, fd: int) -> None:
        if fd in self._open:
            self._open.remove(fd)
            os.close(fd)


def _parse_exit(said: bytes) -> Exit:
    if not said:
        return Exit(_KILLED, lost="its supervising process was killed")
    how: dict[str, Any] = json.loads(said)
    if "failed" in how:
        return Exit(1, lost=f"the program could not be started: {how['failed']}")
    return Exit(how["code"])


async def readable(*fds: int) -> None:
    """Wait until one of ``fds`` can be read, or is at its end."""
    loop = asyncio.get_running_loop()
    await _ready(fds, loop.add_reader, loop.remove_reader)


async def writable(fd: int) -> None:
    """Wait until ``fd`` can be written, or nobody reads it any more."""
    loop = asyncio.get_running_loop()
    await _ready((fd,), loop.add_writer, loop.remove_writer)


async def _ready(fds: tuple[int, ...], add: Callable[..., object], remove: Callable[[int], object]) -> None:
    ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    # a loop knows one reader for each descriptor, and two tasks may wait for the same pipe
    copies = [os.dup(fd) for fd in fds]
    try:
        for copy in copies:
            add(copy, _resolve, ready)
        await ready
    finally:
        for copy in copies:
            remove(copy)
            os.close(copy)


def _resolve(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
