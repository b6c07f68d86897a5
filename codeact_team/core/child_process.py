"""Programs of this package that run as child processes, and the messages that pass through their pipes.

The upper half is for the parent, the lower half for the child.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from signal import SIGKILL
from typing import Any, Protocol, Self

from codeact_team.errors import CodeActTeamError

Message = dict[str, Any]
"""JSON data; only its item ``content`` may be bytes, which are sent as they are."""
_SIZES = struct.Struct(">II")
GRACE = 20.0
"""Seconds that a child has to end in order."""
_PR_SET_PDEATHSIG = 1
_PROGRAM = """
import os, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl({option}, {number})
if os.getppid() != {parent}:
    os._exit(1)
from {module} import main
main()
"""
"""The program of a child. It ends with its parent also while it imports, which takes longest."""


class ProcessLostError(Exception):
    """A process has died, with all that it was doing; the text says how."""


class MessageChannel(Protocol):
    """One end of a connection that carries messages both ways."""

    def send(self, message: Message) -> None:
        """Send a message. One to a dead process is lost."""
        ...

    async def drained(self) -> None:
        """Wait until most messages are sent, so that few wait in memory."""
        ...

    async def receive(self) -> Message | None:
        """The next message; ``None`` at the end."""
        ...


class PipeChannel:
    """A channel through two pipes. A message is two lengths of four bytes each, JSON, and the bytes of ``content``."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, message: Message) -> None:
        if not self._writer.is_closing():
            content: bytes = message.get("content", b"")
            data = json.dumps({name: message[name] for name in message if name != "content"}).encode()
            self._writer.write(_SIZES.pack(len(data), len(content)) + data)
            if content:
                self._writer.write(content)

    async def drained(self) -> None:
        with suppress(ConnectionError):
            await self._writer.drain()

    async def receive(self) -> Message | None:
        try:
            size, content = _SIZES.unpack(await self._reader.readexactly(_SIZES.size))
            message: Message = json.loads(await self._reader.readexactly(size))
            if content:
                message["content"] = await self._reader.readexactly(content)
            return message
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    async def close_output(self) -> None:
        """Let the other end read to the end of what was sent."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


class ChildProcess(PipeChannel):
    """The parent's end of a channel to a child process; made by :meth:`start`."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        super().__init__(process.stdout, process.stdin)
        self._process = process
        self._has_answered = False

    @classmethod
    async def start(
        cls, module: str, *, inherited: Sequence[int] = (), environment: Mapping[str, str] | None = None
    ) -> Self:
        """Run ``main`` of a module, in a process that imports from the same places as this one, and ends with it.

        Args:
            module: The module.
            inherited: Descriptors that it has, too. Their numbers are in the item ``descriptors`` of its first message.
            environment: Its variables; by default those of this process.
        """
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-c",
            # not by -m, so that its classes belong to the module, and not to `__main__`
            _PROGRAM.format(
                option=_PR_SET_PDEATHSIG, number=SIGKILL.value, parent=os.getpid(), module=module
            ),
            stdin=PIPE,
            stdout=PIPE,
            # a terminal sends its signals to the parent only, which stops its children in order
            start_new_session=True,
            pass_fds=inherited,
            env=environment,
        )
        child = cls(process)
        child.send({"path": sys.path, "descriptors": [*inherited]})
        return child

    async def receive(self) -> Message:
        """The next message.

        Raises:
            ProcessLostError: If the process was killed, or has ended after its first message.
            CodeActTeamError: If it has ended by itself before that.
        """
        message = await super().receive()
        if message is None:
            if not self._has_answered and (code := await self._process.wait()) >= 0:
                raise CodeActTeamError(
                    f"a process of this program has ended before it was ready, with exit code {code}"
                )
            raise ProcessLostError("its process has died")
        self._has_answered = True
        return message

    def kill(self) -> None:
        """Kill the process."""
        with suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> None:
        """End the process: in order by the end of its input, else by force."""
        self._writer.close()
        try:
            await asyncio.wait_for(self._process.wait(), GRACE)
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        await self.close_output()


def take_standard_streams(*, quiet: bool = False) -> tuple[int, int]:
    """Replace standard input and output, so that nothing else reads or prints there, and return their descriptors.

    Where nothing that the program prints is for a person, ``quiet`` replaces standard error, too.
    """
    incoming, outgoing = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 0)
    if quiet:
        os.dup2(nowhere, 2)
    os.dup2(2, 1)
    os.close(nowhere)
    return incoming, outgoing


async def connect_to_parent(incoming: int, outgoing: int) -> tuple[PipeChannel, Sequence[int]]:
    """Connect a child to its parent by the descriptors of :func:`take_standard_streams`. Also returns those that it inherits."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(incoming, "rb", 0))
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(outgoing, "wb", 0)
    )
    channel = PipeChannel(reader, asyncio.StreamWriter(transport, protocol, None, loop))
    if (place := await channel.receive()) is None:
        os._exit(1)
    sys.path[:] = place["path"]
    return channel, place["descriptors"]
