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

from codeact_team.aio import to_the_end
from codeact_team.errors import EngineError, SandboxError
from codeact_team.sandboxes.base import Process, Sandbox
from codeact_team.sandboxes.docker.config import DockerSandboxConfig
from codeact_team.sandboxes.docker.container import WORKSPACE, create, end, is_rootless, is_unshared, user_for
from codeact_team.sandboxes.docker.engine import Client, connect, engine_url, open_stream, translated
from codeact_team.sandboxes.docker.image import ensure_image
from codeact_team.sandboxes.docker.process import DockerProcess, receive
from codeact_team.sandboxes.docker.stream import Demultiplexer
from codeact_team.sandboxes.limits import Limits

logger = logging.getLogger(__name__)

_EXEC = (resources.files(__name__.rpartition(".")[0]) / "exec.sh").read_text()
_CHUNK = 256 * 1024
_MAX_STRAY_CHUNKS = 16
_FIRST_WORDS = 4096
_KILL_TIMEOUT = 0.8
"""Seconds that killed programs get to end; where they need longer, the container is stopped."""


class DockerSandbox(Sandbox):
    """A container without network, capabilities and privileges, in which programs are started one by one.

    Its first process is a shell of ours that passes on signals and lives as long as the host process does. What a
    program leaves running ends with it.

    Args:
        config: The container's settings.
        work_dir: Directory of the host to bind as the workspace; ``None`` for a workspace inside the container.
        bind_dir: The same directory as the engine names it, where that differs.
        must_share: Whether it is an error that the engine does not see ``work_dir``, or the user cannot write there. If
            not, the workspace is then inside the container.
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
        self._word = secrets.token_hex(8)
        self._container: str | None = None
        self._signals: socket.socket | None = None
        self._own: frozenset[str] = frozenset()
        self.shared = work_dir is not None
        """Whether the workspace is a directory of the host."""

    @property
    def limits(self) -> Limits:
        return self._config.limits

    @property
    def python(self) -> str:
        return "python3"

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
        try:
            if client is not None:
                await to_the_end(asyncio.to_thread(self._remove, client, container))
        finally:
            if signals is not None:
                signals.close()

    async def spawn(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, supervises: bool = False
    ) -> Process:
        client, url, container = self._client, self._url, self._container
        if client is None or container is None:
            raise EngineError("the container is not running: start the executor first")
        # of the shell around a program, others could take over the stream
        mark = None if supervises else secrets.token_hex(16).encode()
        command = ["/bin/sh", "-c", 'exec "$@"' if mark is None else _EXEC, "exec", *argv]
        launched: list[DockerProcess] = []

        def launch() -> None:
            with translated(url):
                created = client.exec_create(container, command, stdin=True, environment=dict(env or {}))
            path = f"/exec/{created['Id']}/start"
            stream = open_stream(client, url, path, {"Detach": False, "Tty": False})
            launched.append(DockerProcess(client, container, created["Id"], stream, mark, self.kill))

        try:
            await to_the_end(asyncio.to_thread(launch))
            if mark is not None:
                await launched[0].write(mark + b"\n")
        except BaseException:
            for process in launched:
                await process.aclose()
            raise
        return launched[0]

    async def interrupt(self) -> None:
        self._signal(b"INT\n")

    async def kill(self) -> None:
        signals = self._signals
        if signals is None:
            return
        nonce = secrets.token_hex(16).encode()
        self._signal(b"KILL %s\n" % nonce)
        try:
            async with asyncio.timeout(_KILL_TIMEOUT):
                # so that a late signal does not meet the next program
                await _answer(signals, nonce)
                # a block can take the signal away and forge the answer, but not what the engine sees
                while (seen := await to_the_end(asyncio.to_thread(self._processes))) != self._own or not seen:
                    pass
        except (TimeoutError, ConnectionError):
            logger.warning("what runs in the container does not end by SIGKILL: stopping the container")
            await to_the_end(self.stop())

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
        self._url = engine_url()
        await to_the_end(asyncio.to_thread(self._connect))
        await ensure_image(self._client, self._config.image, self._config.pull)
        said, output = await self._first_words(work_dir)
        if said in ("unshared", "unwritable") and work_dir is not None and not self._must_share:
            logger.warning("%s is %s for the container: the workspace is inside it", work_dir, said)
            await self.stop()
            self.shared = False
            await self._start_container(None)
        elif said != "ready":
            raise EngineError(self._explain(said, output))
        else:
            # nothing hostile runs yet
            self._own = await to_the_end(asyncio.to_thread(self._processes))

    def _connect(self) -> None:
        self._client = connect(self._url)

    async def _first_words(self, work_dir: Path | None) -> tuple[str, str]:
        """Make the container; return what its first process says of it, and what was written before that."""
        probe = _put_probe(work_dir) if work_dir is not None else None
        try:
            await to_the_end(asyncio.to_thread(self._launch, work_dir, probe.name if probe else ""))
            return await self._first_line()
        except EngineError as error:
            if is_unshared(error, self._bound(work_dir)):
                return "unshared", ""
            raise
        finally:
            if probe is not None:
                probe.unlink(missing_ok=True)

    def _bound(self, work_dir: Path | None) -> Path | None:
        """The workspace's directory as the engine names it."""
        return None if work_dir is None else (self._bind_dir or work_dir).resolve()

    def _launch(self, work_dir: Path | None, probe: str) -> None:
        """Create, attach, start. Blocks; what it has made so far is left to :meth:`stop`."""
        client, url = self._client, self._url
        assert client is not None
        rootless = work_dir is not None and is_rootless(client, url)
        user = user_for(work_dir, self._config, rootless=rootless)
        if user.partition(":")[0] == "0" and self._config.user is None and not rootless:
            _say_once(
                f"{work_dir} belongs to root, so the code runs as uid 0 of the container, without capabilities"
            )
        bound = self._bound(work_dir)
        self._container = create(client, self._config, user=user, bound=bound, word=self._word, probe=probe)
        streams = "stream=1&stdin=1&stdout=1&stderr=1"
        self._signals = open_stream(client, url, f"/containers/{self._container}/attach?{streams}")
        with translated(self._config.image):
            client.start(self._container)

    async def _first_line(self) -> tuple[str, str]:
        assert self._signals is not None
        frames, text = Demultiplexer(), b""
        while data := await receive(self._signals, _CHUNK):
            text = (text + frames.feed(data))[-_FIRST_WORDS:]
            output, word, said = text.decode(errors="replace").rpartition(self._word)
            if word and said.endswith("\n"):
                return said.strip(), output.strip()
        return "", text.decode(errors="replace").strip()

    def _processes(self) -> frozenset[str]:
        """What runs inside, as the engine sees it; nothing where it cannot tell. Blocks."""
        try:
            assert self._client is not None
            with translated(self._url):
                found = self._client.top(self._container, ps_args="-eo pid")
        except EngineError as error:
            logger.debug("processes not known: %s", error)
            return frozenset()
        return frozenset(row[0] for row in found["Processes"])

    def _explain(self, said: str, output: str) -> str:
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
        output = output[-1000:] or "it wrote nothing"
        if said.startswith("init-failed "):
            return f"init_command exited with {said.split()[1]}: {output}"
        return f"the container of {self._config.image!r} ended at its start: {output}"

    def _remove(self, client: Client, container: str | None) -> None:
        try:
            with translated(self._url):
                if container is not None:
                    end(client, container, remove=self._config.auto_remove)
        except EngineError as error:
            logger.warning("container %s may be left: %s; `codeact-team doctor --clean`", container, error)
        finally:
            client.close()


def _at_end(stream: socket.socket) -> bool:
    """Whether the peer has closed; reads away what hostile code may have sent this way, which may never end."""
    try:
        for _ in range(_MAX_STRAY_CHUNKS):
            if not stream.recv(_CHUNK):
                return True
    except BlockingIOError:
        return False
    except OSError:
        return True
    return False


async def _answer(stream: socket.socket, nonce: bytes) -> None:
    """Wait until ``nonce`` comes back.

    Raises:
        ConnectionError: If the stream ends before.
    """
    seen = b""
    while nonce not in seen:
        if not (data := await receive(stream, _CHUNK)):
            raise ConnectionError("the container has ended")
        seen = seen[-len(nonce) :] + data


def _put_probe(work_dir: Path) -> Path:
    probe = work_dir / f".codeact-probe-{secrets.token_hex(8)}"
    try:
        # exclusive: never through a link that earlier code may have planted
        os.close(os.open(probe, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except OSError as error:
        raise SandboxError(f"the work_dir {work_dir} cannot be written: {error.strerror}") from error
    return probe


_said: set[str] = set()


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        logger.warning("%s", text)
