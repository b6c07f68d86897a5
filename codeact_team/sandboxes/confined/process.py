"""A confined program as the host holds it: three pipes."""

from __future__ import annotations

import json
import os
from typing import Any

from codeact_team.sandboxes.base import Exit, Process
from codeact_team.sandboxes.readiness import Readiness, writable

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
        self._both = Readiness(self._output, self._status)
        self._end = Readiness(self._status)
        self._exit: Exit | None = None
        self.lost = "its supervising process was killed"
        """What it means if that pipe closes without a word."""
        self.is_orphaned = False
        """Whether it has done so."""

    @property
    def ended(self) -> bool:
        """Whether the program, and all that it has forked, has ended."""
        if self._exit is None and self._status in self._open:
            try:
                said = os.read(self._status, _CHUNK)
            except BlockingIOError:
                return False
            self._exit = self._parse_exit(said)
            self._both.close()
            self._end.close()
            self._close(self._status)
        return self._exit is not None

    async def read(self) -> bytes:
        while True:
            if data := self._read_now():
                return data
            if self.ended:
                # what the program wrote before its end is in the pipe by then
                return self._read_now() or b""
            if data is None:
                await self._both.wait()
            else:
                # a pipe at its end can always be read
                self._both.close()
                await self._end.wait()

    def _read_now(self) -> bytes | None:
        """What is there; ``None`` if nothing is yet, and nothing if nothing will be."""
        if self._output not in self._open:
            return b""
        try:
            return os.read(self._output, _CHUNK)
        except BlockingIOError:
            return None

    async def write(self, data: bytes) -> None:
        left = memoryview(data)
        try:
            while left and self._stdin in self._open:
                try:
                    left = left[os.write(self._stdin, left) :]
                except BlockingIOError:
                    await writable(self._stdin)
        except BrokenPipeError:
            # nobody is left to read it
            return

    async def close_stdin(self) -> None:
        self._close(self._stdin)

    async def wait(self) -> Exit:
        while not self.ended:
            await self._end.wait()
        assert self._exit is not None
        return self._exit

    async def aclose(self) -> None:
        self._both.close()
        self._end.close()
        self._close(self._stdin)
        self._close(self._output)

    def close_inner(self) -> None:
        """Close the ends that belong to the program, once the supervisor has them."""
        for fd in self.inner_fds:
            os.close(fd)
        self.inner_fds = []

    def _parse_exit(self, said: bytes) -> Exit:
        if not said:
            self.is_orphaned = True
            return Exit(_KILLED, lost=self.lost)
        how: dict[str, Any] = json.loads(said)
        if "failed" in how:
            return Exit(1, lost=f"the program could not be started: {how['failed']}")
        return Exit(
            how["code"],
            oom_kills=how.get("oom_kills"),
            fork_failures=how.get("fork_failures", 0),
            processor_seconds=how.get("processor_seconds"),
        )

    def _close(self, fd: int) -> None:
        if fd in self._open:
            self._open.remove(fd)
            os.close(fd)
