"""A container, and a program that runs in it."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import secrets
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import closing, suppress

from docker.errors import APIError, DockerException, NotFound
from requests.exceptions import Timeout

from codeact_team.errors import EngineError
from codeact_team.sandbox.base import KILLED, UNCLEARED, Exit, Process
from codeact_team.sandbox.docker.description import EngineDescription, is_ending
from codeact_team.sandbox.docker.engine import Client, ask, open_stream, translated
from codeact_team.sandbox.docker.streams import Demultiplexer, MarkedStream
from codeact_team.sandbox.readiness import Hangup, Readiness, readable

logger = logging.getLogger(__name__)

LABEL = "codeact-team"
"""The label of each of our containers. Its value names the host and the process that own the container."""
NAMESPACE_LABEL = f"{LABEL}.pid-namespace"
"""The label that names the process namespace of the owner."""

_CHUNK = 256 * 1024
_MAX_UNASKED_CHUNKS = 16
_FIRST_WORDS = 4096
_KILL_TIMEOUT = 1.2
"""Seconds that killed programs get to end; after that, the container is stopped."""
_INSPECTION_TIMEOUT = 0.5
"""Seconds that the engine gets to report why they do not end."""
_RUNNING_TIMEOUT = 10
"""Seconds that the engine gets to answer a request about a running container."""
_REMOVAL_TIMEOUT = 30
"""Seconds that the engine gets to remove a container."""
_REMOVED_ALREADY_TIMEOUT = 5
"""Seconds that it gets if it has begun to remove the container by itself."""


def owner_label() -> str:
    """The value of :data:`LABEL` on a container that this process creates."""
    return f"{platform.node()}:{os.getpid()}"


def labels() -> dict[str, str]:
    """The labels of a container that this process creates."""
    return {LABEL: owner_label(), NAMESPACE_LABEL: process_namespace()}


def process_namespace() -> str:
    """The namespace of this process's id; empty if the system has no such namespaces."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


class Container:
    """A container. Its first process, ``init.sh``, is attached to this one by ``stream``. Its removal closes the client.

    Attributes:
        engine: The engine that runs it.
        user: The user and group of the code.
        is_filtered: Whether our filter of system calls is in force.

    Args:
        limiting: What a shell says before it starts a program, to set limits that the engine does not; or empty.
    """

    def __init__(
        self,
        client: Client,
        url: str,
        id: str,
        stream: socket.socket,
        *,
        engine: EngineDescription,
        user: str,
        is_filtered: bool,
        limiting: str,
        keep: bool,
    ) -> None:
        self.client = client
        self.engine = engine
        self.id = id
        self._url = url
        self._stream = stream
        self._limiting = limiting
        self._keep = keep
        self.user = user
        self.is_filtered = is_filtered
        self.image: str | None = None
        """The digest of its image, after :meth:`identify`; ``None`` if the engine does not report it."""

    @property
    def alive(self) -> bool:
        """Whether the container runs. Discards a limited amount of what hostile code may have sent by the stream."""
        try:
            for _ in range(_MAX_UNASKED_CHUNKS):
                if not self._stream.recv(_CHUNK):
                    return False
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True

    async def first_line(self, word: str) -> tuple[str, str]:
        """The rest of the line that its first process begins with ``word``, and what was written before."""
        frames, text = Demultiplexer(), b""
        while data := await self._receive():
            text = (text + frames.feed(data))[-_FIRST_WORDS:]
            output, found, line = text.decode(errors="replace").rpartition(word)
            if found and line.endswith("\n"):
                return line.strip(), output.strip()
        return "", text.decode(errors="replace").strip()

    async def _receive(self) -> bytes:
        # not by the event loop's `sock_recv`, with which only one task may wait
        while True:
            try:
                return self._stream.recv(_CHUNK)
            except BlockingIOError:
                await readable(self._stream.fileno())

    async def identify(self) -> None:
        """Note its image."""
        self.client.timeout = _RUNNING_TIMEOUT
        self.image = await ask(self._made_from)

    def launch(
        self, command: Sequence[str], env: Mapping[str, str], user: str = ""
    ) -> tuple[str, socket.socket]:
        """Start a program, as another ``user`` than the container's if one is named. Blocks.

        Returns the engine's name for it, and its stream.
        """
        if self._limiting:
            command = ["/bin/sh", "-c", f'{self._limiting} && exec "$@"', "sh", *command]
        with translated(self._url):
            created = self.client.exec_create(self.id, command, stdin=True, environment=dict(env), user=user)
        path = f"/exec/{created['Id']}/start"
        return created["Id"], open_stream(self.client, self._url, path, {"Detach": False, "Tty": False})

    def hangup(self) -> Hangup:
        """What tells of its end."""
        return Hangup(self._stream)

    def signal(self, name: bytes) -> None:
        """Have the first process send a signal to everything else."""
        try:
            self._stream.send(name + b"\n")
        except OSError as error:
            # the container has ended; or a block keeps its first process from reading, and the caller will notice that
            # the block goes on, and stop the container
            logger.debug("signal %r not sent: %s", name, error)

    async def answers(self) -> bool:
        """Whether its first process obeys. It may never answer, so the caller has to limit the time."""
        try:
            await self._order(b"0")
        except OSError:
            return False
        return True

    async def _order(self, signal: bytes) -> None:
        """Have the first process signal everything else, and wait for its answer. Raises an ``OSError`` if it has ended."""
        nonce = secrets.token_hex(16).encode()
        self.signal(signal + b" " + nonce)
        seen = b""
        while nonce not in seen:
            if not (data := await self._receive()):
                raise ConnectionError("the container has ended")
            seen = seen[-len(nonce) :] + data

    async def kill(self) -> None:
        """Kill everything but its own processes. Raises a ``TimeoutError`` without an answer, an ``OSError`` if it has ended."""
        async with asyncio.timeout(_KILL_TIMEOUT):
            # wait, so that a late signal does not hit the next program
            await self._order(b"KILL")

    async def kill_rest(self) -> None:
        """Like :meth:`kill`, and make sure that all is gone. Raises a ``TimeoutError`` if something survives."""
        async with asyncio.timeout(_KILL_TIMEOUT):
            # a block can forge the answer, but not the engine's list; and each order makes the first process reap what has ended
            while True:
                await self.kill()
                if await ask(self._count_processes) == 1:
                    return

    async def why_unresponsive(self) -> str:
        """Why the container does not obey."""

        def inspect() -> str:
            with translated(self._url):
                state = self.client.inspect_container(self.id)["State"]
            return "the container was paused" if state["Paused"] else UNCLEARED

        try:
            async with asyncio.timeout(_INSPECTION_TIMEOUT):
                return await ask(inspect)
        except (TimeoutError, EngineError):
            return "the container engine does not answer"

    def detach(self) -> None:
        """Close the stream to the first process. That ends the container, unless it may outlive this process."""
        self._stream.close()

    def remove(self) -> None:
        """End it, and remove it unless it has to be kept. Blocks. A failure is logged."""
        remove(self.client, self._url, self.id, keep=self._keep)

    def discard(self) -> None:
        """Remove it even if it had to be kept, because no caller knows of it. Blocks. A failure is logged."""
        self.detach()
        remove(self.client, self._url, self.id, keep=False)

    def _made_from(self) -> str | None:
        try:
            with translated(self._url):
                return str(self.client.inspect_container(self.id)["Image"])
        except (EngineError, KeyError) as error:
            logger.debug("the image is not known: %s", error)
            return None

    def _count_processes(self) -> int | None:
        """How many processes run inside, the first one included; ``None`` if the engine cannot list them. Blocks."""
        try:
            with translated(self._url):
                # `null` while a container ends
                return len(self.client.top(self.id, ps_args=self.engine.listing)["Processes"] or ())
        except EngineError as error:
            logger.debug("processes not known: %s", error)
            return None


def remove(client: Client, url: str, container: str, *, keep: bool) -> None:
    """End a container, remove it unless it has to be kept, and close the client. Blocks. A failure is logged."""
    client.timeout = _REMOVAL_TIMEOUT
    try:
        with closing(client), translated(url), suppress(NotFound):
            _end(client, container, keep=keep)
    except EngineError as error:
        logger.warning("container %s may be left: %s; `codeact-team doctor --clean`", container, error)


def _end(client: Client, container: str, *, keep: bool) -> None:
    try:
        if keep:
            client.kill(container)
        else:
            client.remove_container(container, force=True, v=True)
    except APIError as error:
        if not is_ending(error):
            raise
        if not keep:
            # the engine removes it already; if that is done before this request, some engines never answer
            with suppress(Timeout):
                client.wait(container, timeout=_REMOVED_ALREADY_TIMEOUT, condition="removed")


_SETTLING_TIME = 0.1
"""Seconds by which the engine may report the end of a container later than the end of its programs."""
_LAST_OUTPUT_TIME = 1.0
"""Seconds in which the output of a program has to end whose container has."""
_INSPECTION_TIME = 1.0
"""Seconds that the engine gets to report how a program has ended."""
_GONE = "the container ended: it was killed or removed, or ran out of memory as a whole"


class DockerProcess(Process):
    """A program in a running container, over the engine's attached stream.

    The shell around it writes ``mark`` when it has ended. Without a mark, it runs without such a shell. ``hangup`` tells of the
    end of the container, and is closed with the program. ``end_rest`` ends everything that still runs in the container; its
    argument says whether something is known to run.
    """

    def __init__(
        self,
        client: Client,
        container: str,
        exec_id: str,
        stream: socket.socket,
        hangup: Hangup,
        mark: bytes | None,
        end_rest: Callable[[bool], Awaitable[None]],
    ) -> None:
        self._client = client
        self._container = container
        self._exec_id = exec_id
        self._socket = stream
        self._hangup = hangup
        self._readiness = Readiness(stream.fileno(), *hangup.fds)
        self._frames = Demultiplexer()
        self._output = None if mark is None else MarkedStream(mark)
        self._end_rest = end_rest
        self._cut = False
        self.lost: str | None = None
        """Why the sandbox is gone, if that is known here."""

    def cut(self) -> None:
        """End all reading and writing, whatever the engine does."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    async def read(self) -> bytes:
        marked = self._output
        while not (self._cut or (marked is not None and marked.ended)):
            try:
                data = self._socket.recv(_CHUNK)
            except BlockingIOError:
                await self._readable()
                continue
            except ConnectionError:
                data = b""
            if not data:
                self._readiness.close()
                self._cut = True
                return b"" if marked is None else marked.finish()
            output = self._frames.feed(data)
            if output := output if marked is None else marked.feed(output):
                return output
        return b""

    async def _readable(self) -> None:
        """Wait for output. Cut off what does not end with the container: with gVisor, the engine leaves some streams open."""
        await self._readiness.wait()
        if self._hangup.was_seen:
            try:
                async with asyncio.timeout(_LAST_OUTPUT_TIME):
                    await readable(self._socket.fileno())
            except TimeoutError:
                self.cut()

    async def write(self, data: bytes) -> None:
        try:
            with suppress(BlockingIOError):
                data = data[self._socket.send(data) :]
            if data:
                await asyncio.get_running_loop().sock_sendall(self._socket, data)
        except ConnectionError as error:
            logger.debug("stdin not taken: %s", error)

    async def close_stdin(self) -> None:
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError as error:
            logger.debug("stdin not closed: %s", error)

    async def wait(self) -> Exit:
        match None if self._output is None else self._output.numbers:
            case (code, oom_kills, fork_failures, microseconds, left):
                ending = Exit(
                    code & 0xFF,
                    oom_kills=max(0, oom_kills),
                    fork_failures=max(0, fork_failures),
                    processor_seconds=None if microseconds < 0 else microseconds / 1_000_000,
                )
            case _:
                ending = await self._find_ending()
                left = 1
        if ending.lost is None:
            # leftovers could disturb or forge the output of the next program, and the program may have forged the shell's report
            await self._end_rest(left > 0)
        return ending

    async def _find_ending(self) -> Exit:
        if self.lost is not None:
            return Exit(KILLED, lost=self.lost)
        try:
            async with asyncio.timeout(_INSPECTION_TIME):
                return await ask(self._inspect)
        except TimeoutError:
            return Exit(KILLED, lost="the container engine does not answer any more")

    def _inspect(self) -> Exit:
        """How a program has ended whose shell was killed as well. Blocks."""
        time.sleep(_SETTLING_TIME)
        try:
            state = self._client.inspect_container(self._container)["State"]
            if not state["Running"]:
                reason = "the container ran out of memory as a whole" if state.get("OOMKilled") else _GONE
                return Exit(KILLED, lost=reason)
            code = self._client.exec_inspect(self._exec_id)["ExitCode"]
        except NotFound:
            return Exit(KILLED, lost=_GONE)
        except (DockerException, OSError) as error:
            return Exit(KILLED, lost=f"the container engine does not answer any more: {error}")
        finally:
            # the sandbox may have closed it before, and this has opened it again
            self._client.close()
        # the memory limit kills the largest process, never this small shell
        return Exit(KILLED if code is None else code & 0xFF, oom_kills=0)

    async def aclose(self) -> None:
        self._readiness.close()
        self._hangup.close()
        self._socket.close()
