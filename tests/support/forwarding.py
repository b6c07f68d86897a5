"""Something in front of the engine that passes everything on, until it is told to hang.

Run as a program it is a process of its own, so that a test can stop it by SIGSTOP: then the engine is there, takes
connections and answers nothing, while the real one serves everybody else.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from support.executing import wait_until
from support.fork_server import start

from codeact_team.sandbox.docker.address import engine_url

if TYPE_CHECKING:
    import pytest

ROOTLESS = {b"name=seccomp,profile=default": b"name=rootless,profile=defaul", b'"CgroupVersion":"1"': b'"CgroupVersion":"2"'}  # fmt: skip
"""What a rootless engine says."""


async def forward(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    engine: str,
    hang_at: bytes = b"",
    changes: Mapping[bytes, bytes] | None = None,
    endless: bytes = b"",
) -> None:
    """Pass on one connection to ``engine``, a URL, and back.

    Args:
        reader: Where its requests come from.
        writer: Where the answers go.
        engine: The engine.
        hang_at: Where this is to be sent, this process stops.
        changes: What is passed on as something else of the same length, either way.
        endless: Answers to requests with this have no end.
    """
    has_end = True
    parts = urlsplit(engine)
    if parts.scheme == "unix":
        theirs, ours = await asyncio.open_unix_connection(parts.path)
    else:
        theirs, ours = await asyncio.open_connection(parts.hostname, parts.port or 2375)

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter, hang_at: bytes) -> None:
        nonlocal has_end
        try:
            while data := await source.read(65536):
                if endless and source is reader and endless in data:
                    has_end = False
                if hang_at and hang_at in data:
                    os.kill(os.getpid(), signal.SIGSTOP)
                for old, new in (changes or {}).items():
                    data = data.replace(old, new)
                target.write(data)
                await target.drain()
            if has_end or target is ours:
                target.write_eof()
        except OSError:
            target.close()

    try:
        await asyncio.gather(copy(reader, ours, hang_at), copy(theirs, writer, b""))
    finally:
        for stream in (ours, writer):
            stream.close()
            with suppress(OSError):
                await stream.wait_closed()


@asynccontextmanager
async def engine_with(
    changes: dict[bytes, bytes], monkeypatch: pytest.MonkeyPatch, directory: Path
) -> AsyncGenerator[None]:
    """The engine of this machine, which is told, or tells, something else in some places."""
    engine, connections = engine_url(), list[asyncio.Task[None]]()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(asyncio.ensure_future(forward(reader, writer, engine, changes=changes)))

    async with await asyncio.start_unix_server(connected, directory / "engine.sock"):
        monkeypatch.setenv("DOCKER_HOST", f"unix://{directory}/engine.sock")
        yield
    await asyncio.gather(*connections)


@dataclass(frozen=True)
class Engine:
    """An engine that can hang.

    Attributes:
        url: What to set ``DOCKER_HOST`` to.
        pid: The process between it and the real one.
    """

    url: str
    pid: int

    def hang(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    @property
    def hangs(self) -> bool:
        return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def listens(path: Path) -> bool:
    """Whether something takes connections there."""
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(str(path)) == 0


@contextmanager
def engine_that_can_hang(directory: Path, hang_at: str = "", endless: str = "") -> Generator[Engine]:
    """The engine of this machine at another address.

    Args:
        directory: For its socket.
        hang_at: What in a request makes it hang.
        endless: What in a request makes the answer have no end.
    """
    path = directory / "engine.sock"
    arguments = [str(path), engine_url(), hang_at, endless]
    process = start(
        ["-m", "support.forwarding", *arguments],
        cwd=Path(__file__).parent.parent,
        environment=os.environ,
        stdout=2,
        stderr=2,
    )
    try:
        wait_until(lambda: listens(path), seconds=30)
        yield Engine(f"unix://{path}", process.pid)
    finally:
        process.kill()
        process.wait(30)


async def _serve(path: str, engine: str, hang_at: str, endless: str) -> None:
    # the loop alone does not keep one that has read all there is
    connections = set[asyncio.Task[None]]()

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passing_on = forward(reader, writer, engine, hang_at.encode(), endless=endless.encode())
        connections.add(task := asyncio.ensure_future(passing_on))
        task.add_done_callback(connections.discard)

    async with await asyncio.start_unix_server(connected, path) as server:
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))
