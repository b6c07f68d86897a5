"""A proxy's place: a server at a unix socket that reads first lines as the proxy does, and then sends back what comes."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from codeact_team.executors.egress import Egress
from codeact_team.executors.settings import ExecutorConfig
from codeact_team.network.inside.first_line import MAX_LINE, PROXY, FirstLine, address_of
from codeact_team.sandbox.base import WayOut

TOKEN = "0123456789abcdef" * 4
NAMED = "named.example"
"""A name that code finds in its ``/etc/hosts``."""
NAMED_ADDRESS = address_of(0)


class Echo:
    """A server with threads of its own, as what it measures must not wait for the tests' event loop.

    Attributes:
        directory: Where its socket is.
        lines: The first lines that have come.
        strangers: How many connections have sent something else first.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.lines: list[FirstLine] = []
        self.strangers = 0
        self.connections: list[socket.socket] = []
        self._server: socket.socket | None = None
        self.arrived = threading.Condition()

    @property
    def path(self) -> str:
        return str(self.directory / "socket")

    def open(self, backlog: int = 1024) -> None:
        with suppress(FileNotFoundError):
            os.unlink(self.path)
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(self.path)
        os.chmod(self.path, 0o666)
        self._server.listen(backlog)
        threading.Thread(target=self._accept, args=(self._server,), daemon=True).start()

    def close(self) -> None:
        """End it, as a proxy that is killed ends."""
        server, self._server = self._server, None
        if server is not None:
            # a close alone would leave the thread in its accept
            with suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)
            server.close()
        for connection in self.connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def wait_for(self, count: int) -> None:
        """Wait until so many lines have come."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.lines) >= count, 30), f"only {len(self.lines)} came"

    def units(self) -> list[str]:
        """Those of the connections so far."""
        assert {line.token for line in self.lines} <= {TOKEN}
        return [line.unit for line in self.lines]

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            self.connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            line = b""
            while not line.endswith(b"\n") and len(line) < MAX_LINE and (byte := connection.recv(1)):
                line += byte
            try:
                found = FirstLine.unpack(line)
            except ValueError:
                self.strangers += bool(line)
                return
            if found.token != TOKEN:
                self.strangers += 1
                return
            with self.arrived:
                self.lines.append(found)
                self.arrived.notify_all()
            while data := connection.recv(1 << 18):
                connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)


@contextmanager
def echo_in(directory: Path) -> Generator[Echo]:
    directory.mkdir(exist_ok=True)
    directory.chmod(0o711)
    echo = Echo(directory)
    echo.open()
    try:
        yield echo
    finally:
        echo.close()


def way_out_of(echo: Echo, **more: object) -> WayOut:
    """The way out of a sandbox to this server."""
    addresses = [PROXY, (NAMED_ADDRESS, 80), (NAMED_ADDRESS, 443)]
    return WayOut(echo.directory, TOKEN, addresses, hosts={NAMED: NAMED_ADDRESS}, **more)  # pyright: ignore[reportArgumentType]


class EgressTo(Egress):
    """What an executor has in place of its own way: one that is there already.

    Args:
        way_out: That.
    """

    def __init__(self, way_out: WayOut) -> None:
        super().__init__(ExecutorConfig(egress=[]))
        self._way_out_of_test = way_out

    async def open(self, packages: Path | None = None) -> WayOut:
        return self._way_out_of_test
