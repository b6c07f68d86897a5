"""A hardened container as a sandbox."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from docker.errors import APIError, DockerException, NotFound

from codeact_team.aio import to_the_end
from codeact_team.errors import EngineError
from codeact_team.sandboxes.base import Exit, Process, Sandbox
from codeact_team.sandboxes.docker.config import DockerSandboxConfig
from codeact_team.sandboxes.docker.container import WORKSPACE, create, is_rootless, user_for
from codeact_team.sandboxes.docker.engine import Client, connect, engine_url, open_stream, translated
from codeact_team.sandboxes.docker.image import ensure_image
from codeact_team.sandboxes.docker.stream import Demultiplexer, MarkedStream
from codeact_team.sandboxes.limits import Limits

logger = logging.getLogger(__name__)

_EXEC = (resources.files(__name__.rpartition(".")[0]) / "exec.sh").read_text()
_CHUNK = 256 * 1024
_LONGEST_FIRST_LINE = 4096
_CONFLICT = 409
_KILLED = 137
_GONE = "the container ended: it was killed or removed, or ran out of memory as a whole"


class DockerSandbox(Sandbox):
    """A container without network, capabilities and privileges, in which programs are started one by one.

    Its first process is a shell of ours that passes on signals and lives as long as the host process does.

    Args:
        config: The container's settings.
        work_dir: Directory of the host to bind as the workspace; ``None`` for a workspace inside the container.
        bind_dir: The same directory as the engine names it, where that differs.
        must_share: Whether it is an error that the engine does not see ``work_dir``. If not, the workspace is then
            inside the container.
    """

    def __init__(
        self,
        config: DockerSandboxConfig,
        *,
        work_dir: Path | None = None,
        bind_dir: Path | None = None,
        must_share: bool = True,
    ) -> None:
        self._config = config
        self._work_dir = work_dir
        self._bind_dir = bind_dir or work_dir
        self._must_share = must_share
        self._client: Client | None = None
        self._url = ""
        self._container: str | None = None
        self._signals: socket.socket | None = None
        self.shared = work_dir is not None
        """Whether the workspace is a directory of the host."""

    @property
    def limits(self) -> Limits:
        return self._config.limits

    @property
    def running(self) -> bool:
        return self._signals is not None and not _at_end(self._signals)

    async def start(self) -> None:
        if self.running:
            return
        await self.stop()
        try:
            await self._start_container(self._work_dir if self.shared else None)
        except BaseException:
            await to_the_end(self.stop())
            raise

    async def stop(self) -> None:
        client, container, signals = self._client, self._container, self._signals
        self._client = self._container = self._signals = None
        if signals is not None:
            signals.close()
        if client is not None:
            await to_the_end(asyncio.to_thread(self._remove, client, container))

    async def spawn(self, argv: Sequence[str], *, env: Mapping[str, str] | None = None) -> Process:
        client, url, container = self._client, self._url, self._container
        if client is None or container is None:
            raise EngineError("the container is not running: start the executor first")
        command = ["/bin/sh", "-c", _EXEC, "exec", *argv]

        def launch() -> tuple[str, socket.socket]:
            with translated(url):
                created = client.exec_create(container, command, stdin=True, environment=dict(env or {}))
            path = f"/exec/{created['Id']}/start"
            return created["Id"], open_stream(client, url, path, {"Detach": False, "Tty": False})

        exec_id, stream = await to_the_end(asyncio.to_thread(launch))
        mark = secrets.token_hex(16).encode()
        process = DockerProcess(client, container, exec_id, stream, mark)
        await process.write(mark + b"\n")
        return process

    async def interrupt(self) -> None:
        self._signal(b"INT\n")

    async def kill(self) -> None:
        self._signal(b"KILL\n")

    def _signal(self, name: bytes) -> None:
        if self._signals is None:
            return
        try:
            self._signals.send(name)
        except OSError as error:
            # the container has ended, and everything inside with it; or a block keeps its first process from reading,
            # and whoever called sees that it goes on and stops the container
            logger.debug("signal %r not sent: %s", name, error)

    async def _start_container(self, work_dir: Path | None) -> None:
        probe = _put_probe(work_dir) if work_dir is not None else None
        try:
            self._url = engine_url()
            self._client = await to_the_end(asyncio.to_thread(connect, self._url))
            await ensure_image(self._client, self._config.image, self._config.pull)
            await to_the_end(
                asyncio.to_thread(self._launch, self._client, work_dir, probe.name if probe else "")
            )
            said = await self._first_line()
        finally:
            if probe is not None:
                probe.unlink(missing_ok=True)
        if said == "unshared" and not self._must_share:
            logger.warning("the engine does not see %s: the workspace is inside the container", work_dir)
            await self.stop()
            self.shared = False
            await self._start_container(None)
        elif said != "ready":
            raise EngineError(self._explain(said))

    def _launch(self, client: Client, work_dir: Path | None, probe: str) -> None:
        """Create, attach, start. Blocks; what it has made so far is left to :meth:`stop`."""
        url = self._url
        rootless = work_dir is not None and is_rootless(client, url)
        user = user_for(work_dir, self._config, rootless=rootless)
        if user.partition(":")[0] == "0" and self._config.user is None and not rootless:
            _say_once(
                f"{work_dir} belongs to root, so the code runs as uid 0 of the container, without capabilities"
            )
        bound = None if work_dir is None else (self._bind_dir or work_dir).resolve()
        self._container = create(client, self._config, user=user, bound=bound, probe=probe)
        streams = "stream=1&stdin=1&stdout=1&stderr=1"
        self._signals = open_stream(client, url, f"/containers/{self._container}/attach?{streams}")
        with translated(self._config.image):
            client.start(self._container)

    async def _first_line(self) -> str:
        """What the first process says; the text of its errors where it says nothing of ours."""
        assert self._signals is not None
        frames, text = Demultiplexer(), b""
        loop = asyncio.get_running_loop()
        while len(text) < _LONGEST_FIRST_LINE:
            if not (data := await loop.sock_recv(self._signals, _LONGEST_FIRST_LINE)):
                break
            text += frames.feed(data)
            last = text.decode(errors="replace").rstrip("\n").rpartition("\n")[2]
            if text.endswith(b"\n") and last.partition(" ")[0] in ("ready", "unshared", "unwritable"):
                return last
        return text.decode(errors="replace").strip()

    def _explain(self, said: str) -> str:
        if said == "unshared":
            return (
                f"the container engine does not see the directory {self._work_dir} of this machine: set "
                "`workspace: container`, or `bind_dir` to the engine's name for that directory"
            )
        if said == "unwritable":
            return (
                f"the code's user cannot write to {self._work_dir or WORKSPACE}: make it writable, or set `user` to "
                "its owner"
            )
        output, _, status = said.rpartition("init-failed ")
        if output or status.isdigit():
            return f"init_command exited with {status}: {output.strip()[-1000:] or 'it wrote nothing'}"
        return (
            f"the container of {self._config.image!r} ended at its start: {said[-1000:] or 'it said nothing'}"
        )

    def _remove(self, client: Client, container: str | None) -> None:
        try:
            with translated(self._url):
                if container is not None and self._config.auto_remove:
                    client.remove_container(container, force=True, v=True)
                elif container is not None:
                    client.kill(container)
        except EngineError as error:
            cause = error.__cause__
            gone = isinstance(cause, NotFound) or (
                isinstance(cause, APIError) and cause.status_code == _CONFLICT
            )
            if not gone:
                logger.warning(
                    "container %s may be left: %s; `codeact-team doctor --clean`", container, error
                )
        finally:
            client.close()


class DockerProcess(Process):
    """A program started in a running container, over the engine's attached stream."""

    def __init__(
        self, client: Client, container: str, exec_id: str, stream: socket.socket, mark: bytes
    ) -> None:
        self._client = client
        self._container = container
        self._exec_id = exec_id
        self._socket = stream
        self._frames = Demultiplexer()
        self._output = MarkedStream(mark)
        self._cut = False

    async def read(self) -> bytes:
        loop = asyncio.get_running_loop()
        while not (self._output.ended or self._cut):
            try:
                data = await loop.sock_recv(self._socket, _CHUNK)
            except ConnectionError:
                data = b""
            if not data:
                self._cut = True
                return self._output.finish()
            if output := self._output.feed(self._frames.feed(data)):
                return output
        return b""

    async def write(self, data: bytes) -> None:
        try:
            await asyncio.get_running_loop().sock_sendall(self._socket, data)
        except ConnectionError as error:
            logger.debug("stdin not taken: %s", error)

    async def close_stdin(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            logger.debug("stdin not closed: %s", error)

    async def wait(self) -> Exit:
        match self._output.numbers:
            case (code, oom_kills, fork_failures):
                return Exit(code & 0xFF, oom_kills=max(0, oom_kills), fork_failures=max(0, fork_failures))
            case _:
                return await to_the_end(asyncio.to_thread(self._inspect))

    def _inspect(self) -> Exit:
        """How a program ended whose shell was killed, too."""
        try:
            state = self._client.inspect_container(self._container)["State"]
            if not state["Running"]:
                reason = "the container ran out of memory as a whole" if state.get("OOMKilled") else _GONE
                return Exit(_KILLED, lost=reason)
            code = self._client.exec_inspect(self._exec_id)["ExitCode"]
        except NotFound:
            return Exit(_KILLED, lost=_GONE)
        except (DockerException, OSError) as error:
            return Exit(_KILLED, lost=f"the container engine does not answer any more: {error}")
        return Exit(_KILLED if code is None else code & 0xFF)

    async def aclose(self) -> None:
        self._socket.close()


def _at_end(stream: socket.socket) -> bool:
    """Whether the peer has closed; reads away what hostile code may have sent this way."""
    try:
        while data := stream.recv(_CHUNK):
            logger.debug("%d stray bytes from the container", len(data))
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _put_probe(work_dir: Path) -> Path:
    probe = work_dir / f".codeact-probe-{secrets.token_hex(8)}"
    # exclusive: never through a link that earlier code may have planted
    os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    return probe


_said: set[str] = set()


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        logger.warning("%s", text)
