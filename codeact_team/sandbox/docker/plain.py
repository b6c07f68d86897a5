"""Programs of a container without a Python: the engine starts each, a shell reports how it ended, and another one ends the rest."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import resources

from codeact_team.sandbox.base import UNCLEARED, Exit, Process, time_to_end
from codeact_team.sandbox.docker.container import Container
from codeact_team.sandbox.docker.engine import ask
from codeact_team.sandbox.docker.programs import ContainerProcess
from codeact_team.sandbox.system.kernel import CODE_DESCRIPTORS

logger = logging.getLogger(__name__)

_EXEC = (resources.files(__name__.rpartition(".")[0]) / "exec.sh").read_text()
_NUMBER = re.compile(rb"-?[0-9]+")


class MarkedStream:
    """Separates a program's output from the line that ends it: a mark that the program does not know, and numbers.

    A program that finds out its mark can lie only about its own end, because every program has another mark.
    """

    _LONGEST_LINE = 64

    def __init__(self, mark: bytes) -> None:
        self._mark = mark
        self._is_marked = False
        self._held = b""
        """Bytes that may begin the mark; after the mark, the beginning of the line."""
        self.numbers: tuple[int, ...] | None = None
        """The numbers after the mark, once the line is complete; ``None`` before."""

    @property
    def ended(self) -> bool:
        """Whether the line that ends the output is complete."""
        return self.numbers is not None

    def feed(self, data: bytes) -> bytes:
        """The next part of the output that cannot belong to the mark."""
        data, output = self._held + data, b""
        if not self._is_marked:
            output, mark, data = data.partition(self._mark)
            if not mark:
                end = len(output) - self._overlap(output)
                self._held = output[end:]
                return output[:end]
            self._is_marked = True
        self._held, newline, _ = data[: self._LONGEST_LINE].partition(b"\n")
        if self.numbers is None and (newline or len(self._held) == self._LONGEST_LINE):
            fields = self._held.split()
            self.numbers = tuple(map(int, fields)) if all(map(_NUMBER.fullmatch, fields)) else ()
        return output

    def finish(self) -> bytes:
        """The output that was held back, when no mark will come any more."""
        held, self._held = self._held, b""
        return b"" if self._is_marked else held

    def _overlap(self, data: bytes) -> int:
        """Return the number of bytes at the end of ``data`` that could begin the mark."""
        lengths = range(min(len(self._mark) - 1, len(data)), 0, -1)
        return next((length for length in lengths if data.endswith(self._mark[:length])), 0)


class _MarkedProcess(Process):
    """A program with a shell around it, which reports how it has ended.

    Args:
        process: The shell.
        mark: What it writes when the program has ended.
        end_rest: Ends everything that still runs in the container; its argument says whether something is known to run.
    """

    def __init__(
        self, process: ContainerProcess, mark: bytes, end_rest: Callable[[bool], Awaitable[None]]
    ) -> None:
        self._process = process
        self._output = MarkedStream(mark)
        self._end_rest = end_rest

    async def read(self) -> bytes:
        while not self._output.ended:
            if not (data := await self._process.read()):
                return self._output.finish()
            if output := self._output.feed(data):
                return output
        return b""

    async def write(self, data: bytes) -> None:
        await self._process.write(data)

    async def close_stdin(self) -> None:
        await self._process.close_stdin()

    async def wait(self) -> Exit:
        match self._output.numbers:
            case (code, oom_kills, fork_failures, microseconds, left):
                ending = Exit(
                    code & 0xFF,
                    oom_kills=max(0, oom_kills),
                    fork_failures=max(0, fork_failures),
                    processor_seconds=None if microseconds < 0 else microseconds / 1_000_000,
                )
            case _:
                ending = await self._process.wait()
                left = 1
        if ending.lost is None:
            # leftovers could disturb or forge the output of the next program, and the program may have forged the shell's report
            await self._end_rest(left > 0)
        return ending

    async def aclose(self) -> None:
        await self._process.aclose()


class PlainPrograms:
    """Starts programs, one at a time, and ends what each has left by the first process, ``init.sh``.

    Args:
        container: The container.
        start: Starts a program there, with more variables.
        give_up: Removes the container for a reason, ``None`` if the engine knows it.
    """

    def __init__(
        self,
        container: Container,
        start: Callable[[Sequence[str], Mapping[str, str]], Awaitable[ContainerProcess]],
        give_up: Callable[[str | None], Awaitable[None]],
    ) -> None:
        self._container = container
        self._start = start
        self._give_up = give_up

    async def spawn(self, argv: Sequence[str], variables: Mapping[str, str]) -> Process:
        """Start a program of which :meth:`Process.wait` tells how it ended."""
        mark = secrets.token_hex(16).encode()
        command = ["/bin/sh", "-c", _EXEC, "exec", str(CODE_DESCRIPTORS), *argv]
        process = await self._start(command, variables)
        try:
            await process.write(mark + b"\n")
        except BaseException:
            await process.aclose()
            raise
        return _MarkedProcess(process, mark, self.end_rest)

    def signal(self, name: bytes) -> None:
        """Have the first process send a signal to everything else."""
        try:
            self._container.stream.send(name + b"\n")
        except OSError as error:
            # the container has ended; or a block keeps its first process from reading, and the caller will notice that
            # the block goes on, and stop the container
            logger.debug("signal %r not sent: %s", name, error)

    async def answers(self) -> bool:
        """Whether the first process obeys. It may never answer, so the caller has to limit the time."""
        try:
            await self._order(b"0")
        except OSError:
            return False
        return True

    async def end_rest(self, is_left: bool) -> None:
        """Kill everything else, and make sure that it is gone if something is known to run."""
        try:
            async with time_to_end():
                # wait for the answer, so that a late signal does not hit the next program
                await self._order(b"KILL")
                # a block can forge the answer, but not the engine's list; and each order makes the first process reap what has ended
                while is_left and await ask(self._container.count_processes) != 1:
                    await self._order(b"KILL")
        except TimeoutError:
            logger.warning("what runs in the container does not end by SIGKILL: stopping the container")
            await self._give_up(await self._container.why_unresponsive() or UNCLEARED)
        except OSError:
            # it has ended
            await self._give_up(None)

    async def _order(self, signal: bytes) -> None:
        """Have the first process signal everything else, and wait for its answer. Raises an ``OSError`` if it has ended."""
        nonce = secrets.token_hex(16).encode()
        self.signal(signal + b" " + nonce)
        seen = b""
        while nonce not in seen:
            if not (data := await self._container.receive()):
                raise ConnectionError("the container has ended")
            seen = seen[-len(nonce) :] + data
