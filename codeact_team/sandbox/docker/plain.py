"""Programs of a container without a Python: the engine starts each, and the first process ends what it has left running."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence

from codeact_team.sandbox.base import UNCLEARED, DirectProcess, Exit, time_to_end
from codeact_team.sandbox.docker.container import Container
from codeact_team.sandbox.docker.programs import ContainerProcess
from codeact_team.sandbox.system.kernel import CODE_DESCRIPTORS

logger = logging.getLogger(__name__)

_RUN = """
trap : INT
ulimit -n "$1"
shift
"$@" 2>&1
code=$?
kill -KILL -1 2>/dev/null
printf '\\036%03d' "$code"
"""
"""Runs a program, ends what it has left, and writes its exit code as the last of all output.

The limit of descriptors comes first. stdout and stderr are one pipe, which keeps them in order."""
_SEPARATOR = b"\036"
_LAST_WORDS = re.compile(_SEPARATOR + b"([0-9]{3})")
_SIZE = 4


class _Program(DirectProcess):
    """A program with a shell around it, which writes the exit code. It can lie about its own end."""

    def __init__(self, process: ContainerProcess, programs: PlainPrograms) -> None:
        self._process = process
        self._programs = programs
        self._held = b""
        """The end of the output, if it may be the shell's last words."""

    async def read(self) -> bytes:
        while data := await self._process.read():
            data = self._held + data
            begin = data.find(_SEPARATOR, max(0, len(data) - _SIZE))
            end = len(data) if begin < 0 else begin
            output, self._held = data[:end], data[end:]
            if output:
                return output
        output = b""
        if not _LAST_WORDS.fullmatch(self._held):
            output, self._held = self._held, b""
        return output

    async def write(self, data: bytes) -> None:
        await self._process.write(data)

    async def close_stdin(self) -> None:
        await self._process.close_stdin()

    async def wait(self) -> Exit:
        told = _LAST_WORDS.fullmatch(self._held)
        ending = await self._process.wait() if told is None else Exit(int(told[1]) & 0xFF)
        if ending.lost is None:
            # leftovers could disturb or forge the output of the next program, and the program may have ended the shell
            await self._programs.kill()
        return ending

    async def interrupt(self) -> None:
        self._programs.interrupt()

    async def kill(self) -> None:
        await self._programs.kill()

    async def aclose(self) -> None:
        await self._process.aclose()


class PlainPrograms:
    """Starts programs, one at a time, and ends what each has left by the first process, ``guard.sh``.

    Args:
        container: The container.
        start: Starts a program there.
        give_up: Removes the container for a reason, ``None`` if the engine knows it.
    """

    def __init__(
        self,
        container: Container,
        start: Callable[[Sequence[str]], Awaitable[ContainerProcess]],
        give_up: Callable[[str | None], Awaitable[None]],
    ) -> None:
        self._container = container
        self._start = start
        self._give_up = give_up

    async def spawn(self, argv: Sequence[str]) -> DirectProcess:
        """Start a program in the workspace."""
        command = ["/bin/sh", "-c", _RUN, "run", str(CODE_DESCRIPTORS), *argv]
        return _Program(await self._start(command), self)

    def interrupt(self) -> None:
        """Send SIGINT to all that runs."""
        self._send("INT")

    async def kill(self) -> None:
        """End all that runs, or the container if that does not end."""
        try:
            async with time_to_end():
                # each order makes the first process reap what has ended, too
                while await self._killed() > 1:
                    pass
        except TimeoutError:
            logger.warning("programs in the container do not end by SIGKILL: stopping the container")
            await self._give_up(await self._container.why_unresponsive() or UNCLEARED)
        except OSError:
            # it has ended
            await self._give_up(None)

    def _send(self, signal: str, word: str = "") -> None:
        try:
            self._container.stream.send(f"{signal} {word}\n".encode())
        except OSError as error:
            # the container has ended; or a block keeps its first process from reading, and the caller will notice that
            # the block goes on, and stop the container
            logger.debug("signal %r not sent: %s", signal, error)

    async def _killed(self) -> int:
        """Have everything killed. Returns how many processes there are then, the first one included.

        Waits for the answer, so that a late signal does not hit the next program. Raises an ``OSError`` if the container has ended.
        """
        word = secrets.token_hex(16)
        self._send("KILL", word)
        answer = re.compile(rf"{word} ([0-9]+)\n".encode())
        seen = b""
        while (found := answer.search(seen)) is None:
            if not (data := await self._container.receive()):
                raise ConnectionError("the container has ended")
            seen = seen[-len(word) - 10 :] + data
        return int(found[1])
