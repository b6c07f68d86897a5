"""A container, and how it ends."""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import socket
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import partial

from docker.errors import APIError, DockerException, NotFound
from requests.exceptions import Timeout

from codeact_team.errors import EngineError
from codeact_team.sandbox.base import KILLED, Exit
from codeact_team.sandbox.docker.description import EngineDescription, is_ending
from codeact_team.sandbox.docker.engine import Client, ask, open_stream, translated
from codeact_team.sandbox.docker.naming import NamedUser
from codeact_team.sandbox.docker.streams import Demultiplexer
from codeact_team.sandbox.readiness import Hangup, readable

logger = logging.getLogger(__name__)

LABEL = "codeact-team"
"""The label of each of our containers. Its value names the host and the process that own the container."""
NAMESPACE_LABEL = f"{LABEL}.pid-namespace"
"""The label that names the process namespace of the owner."""

_CHUNK = 256 * 1024
_FIRST_WORDS = 4096
_EXPLANATION_TIME = 0.5
"""Seconds that the engine gets to report why a container does not obey."""
_SETTLING_TIME = 0.1
"""Seconds by which the engine may report the end of a container later than the end of its programs."""
_INSPECTION_TIME = 1.0
"""Seconds that the engine gets to report how a program has ended."""
GONE = "the container ended: it was killed or removed, or ran out of memory as a whole"
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
    """A container. Its first process is attached to this one by ``stream``. Its removal closes the client.

    Attributes:
        stream: The stream, which is the supervisor's where there is one.
        engine: The engine that runs it.
        user: The user and group of the code.
        is_filtered: Whether our filter of system calls is in force.

    Args:
        limiting: What a shell says before it starts a program, to set limits that the engine does not; or empty.
        keep: Whether it is kept when it has ended.
        named: The file that names its user, if there is one. It is removed with the container.
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
        named: NamedUser | None = None,
    ) -> None:
        self.client = client
        self.engine = engine
        self.id = id
        self._url = url
        self.stream = stream
        self._limiting = limiting
        self._keep = keep
        self._named = named
        self.user = user
        self.is_filtered = is_filtered
        self.frames: Demultiplexer = Demultiplexer()
        self.unread: bytes = b""
        """The output behind the first line that has been read with it."""
        self.image: str | None = None
        """The digest of its image, after :meth:`identify`; ``None`` if the engine does not report it."""

    @property
    def alive(self) -> bool:
        """Whether the container runs, as far as is known without reading what has come from it."""
        try:
            return bool(self.stream.recv(1, socket.MSG_PEEK))
        except BlockingIOError:
            return True
        except OSError:
            return False

    async def first_line(self, word: str) -> tuple[str, str]:
        """The rest of the line that its first process begins with ``word``, and what was written before."""
        mark, text = word.encode(), b""
        while data := await self.receive():
            text = (text + self.frames.feed(data))[-_FIRST_WORDS:]
            output, found, said = text.rpartition(mark)
            line, ended, self.unread = said.partition(b"\n")
            if found and ended:
                return line.decode(errors="replace").strip(), output.decode(errors="replace").strip()
        return "", text.decode(errors="replace").strip()

    async def receive(self) -> bytes:
        """Wait for the next bytes of its stream; ``b""`` at the end."""
        # not by the event loop's `sock_recv`, with which only one task may wait
        while True:
            try:
                return self.stream.recv(_CHUNK)
            except BlockingIOError:
                await readable(self.stream.fileno())

    async def identify(self) -> None:
        """Note its image."""
        self.client.timeout = _RUNNING_TIMEOUT
        self.image = await ask(self._made_from)

    def launch(self, command: Sequence[str], user: str = "") -> tuple[str, socket.socket]:
        """Start a program, as another ``user`` than the container's if one is named. Blocks.

        Returns the engine's name for it, and its stream.
        """
        if self._limiting:
            command = ["/bin/sh", "-c", f'{self._limiting} && exec "$@"', "sh", *command]
        with translated(self._url):
            created = self.client.exec_create(self.id, command, stdin=True, user=user)
        path = f"/exec/{created['Id']}/start"
        return created["Id"], open_stream(self.client, self._url, path, {"Detach": False, "Tty": False})

    def hangup(self) -> Hangup:
        """Return a watcher of its end."""
        return Hangup(self.stream)

    async def why_unresponsive(self) -> str | None:
        """Return the reason for which the container does not obey, if the engine knows one, or is one."""

        def inspect() -> str | None:
            with translated(self._url):
                state = self.client.inspect_container(self.id)["State"]
            return "the container was paused" if state["Paused"] else None

        try:
            async with asyncio.timeout(_EXPLANATION_TIME):
                return await ask(inspect)
        except (TimeoutError, EngineError):
            return "the container engine does not answer"

    def detach(self) -> None:
        """Close the stream to the first process. That ends the container, unless it may outlive this process."""
        self.stream.close()

    def remove(self) -> None:
        """End it, and remove it unless it has to be kept. Blocks. A failure is logged."""
        remove(self.client, self._url, self.id, keep=self._keep)
        self._forget_user()

    def discard(self) -> None:
        """Remove it even if it had to be kept, because no caller knows of it. Blocks. A failure is logged."""
        self.detach()
        remove(self.client, self._url, self.id, keep=False)
        self._forget_user()

    def _forget_user(self) -> None:
        named, self._named = self._named, None
        if named is not None:
            try:
                named.remove()
            except OSError as error:
                logger.warning("a temporary file is left: %s", error)

    def _made_from(self) -> str | None:
        try:
            with translated(self._url):
                return str(self.client.inspect_container(self.id)["Image"])
        except (EngineError, KeyError) as error:
            logger.debug("the image is not known: %s", error)
            return None

    async def ending(self, exec_id: str | None = None) -> Exit:
        """The end of the container, or, if that runs, of a program that the engine has started there."""
        try:
            async with asyncio.timeout(_INSPECTION_TIME):
                return await ask(partial(self._inspect, exec_id))
        except TimeoutError:
            return Exit(KILLED, lost="the container engine does not answer any more")

    def _inspect(self, exec_id: str | None) -> Exit:
        """Find out about an end. Blocks."""
        time.sleep(_SETTLING_TIME)
        try:
            state = self.client.inspect_container(self.id)["State"]
            if not state["Running"] or exec_id is None:
                reason = "the container ran out of memory as a whole" if state.get("OOMKilled") else GONE
                return Exit(KILLED, lost=reason)
            code = self.client.exec_inspect(exec_id)["ExitCode"]
        except NotFound:
            return Exit(KILLED, lost=GONE)
        except (DockerException, OSError) as error:
            return Exit(KILLED, lost=f"the container engine does not answer any more: {error}")
        finally:
            # the sandbox may have closed it before, and this has opened it again
            self.client.close()
        # the memory limit kills the largest process, never a small shell
        return Exit(KILLED if code is None else code & 0xFF, oom_kills=0)


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
