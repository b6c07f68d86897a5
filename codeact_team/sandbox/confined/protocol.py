"""The protocol between the host, the zygote of supervising processes, and each supervising process.

Both ends import this module, so it needs the standard library only. Messages are frames with JSON as payload, some with
descriptors. The host asks the zygote to fork a supervising process, and then asks that to start programs. How a program
has ended is written to a pipe of its own.
"""

from __future__ import annotations

import json
import os
from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from codeact_team.sandbox.system.framing import (
    FrameReader,
    frame,
    receive_with_descriptors,
    send_with_descriptors,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Mapping, Sequence

_MAX_READ = 1 << 16


class Message(IntEnum):
    """The kind of a message."""

    # from the host to the zygote
    FORK = 1
    """Fork a supervising process: its number, and :class:`Confinement`. With the descriptors of a socket to the host, and of
    a pipe that is closed when the process has ended and everything is cleaned up."""
    KILL_FORK = 2
    """Kill the supervising process with this number."""

    # from the host to a supervising process
    SPAWN = 3
    """Start a program: :class:`SpawnRequest`. With the descriptors of its stdin, of its output, and of the pipe that gets
    its :class:`ProgramEnd`."""
    KILL = 4
    """Kill everything that runs."""

    # from a supervising process
    READY = 5
    """It takes requests: :class:`Readied`."""
    FAILED = 6
    """It cannot start: the reason, a string."""


_MAX_PAYLOAD: Mapping[int, int] = dict.fromkeys(Message, 64 << 20)
"""Both ends are ours, so the limit only catches mistakes."""


class Confinement(NamedTuple):
    """The confinement of one sandbox's code; the limits are the config's.

    Attributes:
        readable: Absolute paths that the code may read and execute.
        lent: The ones among them that code of root may read like their owner. In the others it may read what everybody may.
        workspace: The directory that it may write.
        workspace_identity: Device and inode of that directory: something else may be in its place by now.
        is_temporary: Whether the workspace was made for this sandbox, and ends with it.
        shared_memory: Whether the code may write the machine's ``/dev/shm`` where it gets none of its own.
        private: A temporary directory, which is removed at the end, or replaced by a file system in memory.
        way_out: If a supervisor takes connections of code, the files and directories that this needs, each with its place in the
            mount view; else empty.
        hosts: More lines of ``/etc/hosts``, name to address.
        addresses: Where the supervisor takes connections: addresses with ports.
    """

    readable: Sequence[str]
    lent: Sequence[str]
    workspace: str
    workspace_identity: Sequence[int]
    is_temporary: bool
    shared_memory: bool
    private: str
    workspace_mib: int | None
    memory_mib: int
    pids: int
    cpus: float
    tmpfs_mib: int
    way_out: Sequence[tuple[str, str]] = ()
    hosts: Mapping[str, str] = {}
    addresses: Sequence[tuple[str, int]] = ()

    def open_workspace(self) -> int:
        """Open the workspace, only to name it. Raises an ``OSError`` if something else is in its place."""
        workspace = os.open(self.workspace, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        status = os.fstat(workspace)
        if [status.st_dev, status.st_ino] != [*self.workspace_identity]:
            os.close(workspace)
            raise OSError(f"{self.workspace} was replaced")
        return workspace


class SpawnRequest(NamedTuple):
    """A program to start.

    Attributes:
        argv: The program and its arguments; ``None`` for the program that the zygote has loaded.
        env: Its environment.
        readable: Absolute paths that it may read and execute.
        supervises: Whether it supervises code itself, and so may open more descriptors.
    """

    argv: list[str] | None
    env: dict[str, str]
    readable: list[str]
    supervises: bool


class Readied(NamedTuple):
    """The mechanisms that a supervising process can use.

    Attributes:
        reasons: For each, why it is not available, or ``None``.
        is_confined: Whether its programs are kept to what they may do.
        uid: The user whom its programs run as.
    """

    reasons: dict[str, str | None]
    is_confined: bool
    uid: int


class ProgramEnd(NamedTuple):
    """The end of a program.

    Attributes:
        code: Its exit code; 128 + n if signal n has ended it.
        failed: The reason if it could not be started; empty if it was.
    """

    code: int
    failed: str = ""


def encode(value: object) -> bytes:
    """Encode one of the records above, or any other JSON value."""
    return json.dumps(value).encode()


class MessageSocket:
    """One end of a Unix socket for messages. The socket stays the caller's."""

    def __init__(self, socket: socket.socket) -> None:
        self._socket = socket
        self._frames = FrameReader(_MAX_PAYLOAD)
        self._descriptors: list[int] = []

    def send(self, kind: Message, value: object = None, descriptors: Sequence[int] = ()) -> None:
        """Send a message, and descriptors with it. Raises an ``OSError``."""
        data = frame(kind, encode(value))
        sent = send_with_descriptors(self._socket, data, descriptors)
        self._socket.sendall(data[sent:])

    def receive(self) -> Iterator[tuple[int, Any]]:
        """The messages that are complete with what can be read now. Raises an ``EOFError`` at the end of the stream."""
        data, descriptors, _ = receive_with_descriptors(self._socket, _MAX_READ)
        for descriptor in descriptors:
            # otherwise programs would inherit them
            os.set_inheritable(descriptor, False)
        self._descriptors += descriptors
        if not data:
            raise EOFError
        return ((kind, json.loads(payload)) for kind, payload in self._frames.feed(data))

    def take_descriptors(self, number: int) -> Sequence[int]:
        """The descriptors that came with the message at hand; the caller closes them."""
        taken, self._descriptors = self._descriptors[:number], self._descriptors[number:]
        return taken
