"""Engines behind SSH or TLS: a private socket of this machine, from which everything is passed on to them.

So all requests and streams take the same way as to an engine of this machine. Whoever reaches the socket reaches the engine:
it is in a directory that only this user can enter. It ends with this process, however that ends.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import select
import subprocess
import threading
from abc import ABC, abstractmethod
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from codeact_team.core.streams import SocketStream, TlsStream, relay
from codeact_team.errors import EngineError
from codeact_team.sandbox.docker.address import certificates
from codeact_team.sandbox.temporary import TemporaryDirectory
from codeact_team.text.redaction import without_user_info

logger = logging.getLogger(__name__)

_START_TIMEOUT = 30
"""Seconds that another machine gets to answer."""
_LAST_WORDS_TIMEOUT = 2
"""Seconds that the ssh command gets to say why it ends."""
_ENGINES_SOCKET = "/var/run/docker.sock"
_TLS_PORT = 2376
_SSH_OPTIONS = {
    # a question would get no answer
    "BatchMode": "yes",
    "ConnectTimeout": "20",
    "ServerAliveInterval": "15",
    "ExitOnForwardFailure": "yes",
    # a connection that others share would outlive this process
    "ControlMaster": "no",
    "ControlPath": "none",
    "LogLevel": "ERROR",
}
_UP = "codeact-team-is-through"


def local_url(url: str) -> str:
    """The address by which this process reaches the engine at ``url``. Blocks while another machine lets it in.

    Raises:
        EngineError: If that does not.
    """
    scheme = urlsplit(url).scheme
    if scheme not in ("ssh", "https"):
        return url
    with _starting:
        if url in _forwarders and not _forwarders[url].alive:
            _forwarders.pop(url).close()
        if url not in _forwarders:
            _forwarders[url] = _OverSsh(url) if scheme == "ssh" else _OverTls(url)
        forwarder = _forwarders[url]
    return f"unix://{forwarder.path}"


class _Forwarder(ABC):
    """A private socket, from which connections are passed on to the engine at ``url``."""

    def __init__(self, url: str) -> None:
        self._directory = TemporaryDirectory()
        self.path = Path(self._directory.path, "socket")
        try:
            self._start(url)
        except BaseException:
            self._directory.remove()
            raise

    @property
    @abstractmethod
    def alive(self) -> bool:
        """Whether it still passes on."""

    def close(self) -> None:
        """End it, and every connection through it."""
        self._stop()
        self._directory.remove()

    @abstractmethod
    def _start(self, url: str) -> None: ...

    @abstractmethod
    def _stop(self) -> None: ...


class _OverSsh(_Forwarder):
    """Passes on by the ``ssh`` command, with this user's keys, known machines and settings."""

    @property
    def alive(self) -> bool:
        return self._ssh.poll() is None

    def _start(self, url: str) -> None:
        parts = urlsplit(url)
        machine = f"{unquote(parts.username)}@{parts.hostname}" if parts.username else str(parts.hostname)
        options = [word for name, value in _SSH_OPTIONS.items() for word in ("-o", f"{name}={value}")]
        port = [] if parts.port is None else ["-p", str(parts.port)]
        forward = f"{self.path}:{unquote(parts.path).rstrip('/') or _ENGINES_SOCKET}"
        said = Path(self._directory.path, "said")
        with said.open("wb") as errors:
            try:
                # by its program there, which ends with its input, it ends with this process
                self._ssh = subprocess.Popen(
                    ["ssh", "-T", *options, *port, "-L", forward, "--", machine, f"echo {_UP}; exec cat"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    # Ctrl-C is for this process, which ends its containers first
                    start_new_session=True,
                )
            except FileNotFoundError as error:
                raise EngineError(
                    "the container engine is reached over SSH: install the ssh command (OpenSSH's client)"
                ) from error
        if not self._is_through():
            self._stop()
            raise EngineError(_refused(url, said.read_text(errors="replace")))

    def _is_through(self) -> bool:
        assert self._ssh.stdout is not None
        readable, _, _ = select.select([self._ssh.stdout], [], [], _START_TIMEOUT)
        if readable and self._ssh.stdout.readline().strip() == _UP.encode():
            return True
        if readable:
            # it ends, and says why
            with suppress(subprocess.TimeoutExpired):
                self._ssh.wait(_LAST_WORDS_TIMEOUT)
        return False

    def _stop(self) -> None:
        self._ssh.kill()
        # closes its pipes, too
        self._ssh.communicate()


def _refused(url: str, said: str) -> str:
    place = without_user_info(url)
    machine = urlsplit(place).hostname
    reason = " ".join(said.split())[-500:] or f"no answer within {_START_TIMEOUT} s"
    return (
        f"the machine of the container engine at {place} cannot be reached over SSH ({reason}): `ssh {machine} true` must "
        "work without asking anything, so add a key to the SSH agent, and the machine to the known hosts"
    )


class _OverTls(_Forwarder):
    """Passes on from a thread with a loop of its own, as the loops of its users come and go."""

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def _start(self, url: str) -> None:
        place = without_user_info(url)
        try:
            self._context = certificates(url).context()
        except (OSError, ValueError) as error:
            raise EngineError(
                f"the certificates for the container engine at {place} cannot be used: {error}"
            ) from error
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "localhost", parts.port or _TLS_PORT
        started: Future[None] = Future()
        self._thread = threading.Thread(
            target=asyncio.run, args=(self._serve(started),), name="codeact-team-tls", daemon=True
        )
        self._thread.start()
        started.result()
        try:
            asyncio.run_coroutine_threadsafe(self._try_out(), self._loop).result(_START_TIMEOUT)
        except (OSError, TimeoutError) as error:
            self._stop()
            reason = str(error) or f"no answer within {_START_TIMEOUT} s"
            raise EngineError(
                f"the container engine at {place} cannot be reached over TLS ({reason}): check whether it runs there, "
                "and whether ca.pem, cert.pem and key.pem in DOCKER_CERT_PATH, or the files of the Docker context, belong to it"
            ) from error

    async def _serve(self, started: Future[None]) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        connections = set[asyncio.Task[None]]()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = asyncio.ensure_future(self._pass_on(reader, writer))
            connections.add(connection)
            connection.add_done_callback(connections.discard)

        server = await asyncio.start_unix_server(connected, self.path)
        started.set_result(None)
        await self._stopping.wait()
        server.close()
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    def _stop(self) -> None:
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    async def _try_out(self) -> None:
        stream = await self._connect()
        try:
            # before that, the other side may refuse this one's certificate
            await stream.write(b"GET /_ping HTTP/1.0\r\n\r\n")
            if not await stream.read():
                raise ConnectionError("the other side has closed the connection")
        finally:
            stream.close()

    async def _connect(self) -> TlsStream:
        under = SocketStream(*await asyncio.open_connection(self._host, self._port))
        stream = TlsStream(under, self._context, self._host)
        try:
            await stream.handshake()
        except BaseException:
            stream.close()
            raise
        return stream

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        local = SocketStream(reader, writer)
        try:
            engine = await self._connect()
            try:
                await relay(local, engine)
            finally:
                engine.close()
        except OSError as error:
            # who has connected sees the end
            logger.debug("the connection over TLS has ended: %s", error)
        finally:
            local.close()


_forwarders: dict[str, _Forwarder] = {}
"""By the address of the engine."""
_starting = threading.Lock()


@atexit.register
def close() -> None:
    """End all forwarding, at the end of this process at the latest."""
    for forwarder in _forwarders.values():
        forwarder.close()
    _forwarders.clear()
