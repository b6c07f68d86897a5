"""Removes what killed processes have left at an engine, and notes each start, so that nothing is left unknown.

A container ends with its process once it has started, and not before that. So containers that are about to start are noted:
if their process is killed meanwhile, the next run removes them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import secrets
import stat
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docker.errors import APIError, NotFound

from codeact_team.errors import EngineError
from codeact_team.sandbox.docker.container import LABEL, NAMESPACE_LABEL, process_namespace
from codeact_team.sandbox.docker.description import describe
from codeact_team.sandbox.docker.engine import REQUEST_TIMEOUT, Client, at_engine, connect, translated
from codeact_team.sandbox.system.kernel import is_running
from codeact_team.sandbox.temporary import is_the_one, lock, make_held

logger = logging.getLogger(__name__)

_START_LABEL = f"{LABEL}.start"
"""The label that identifies the start of a container; the note contains its value."""

_NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_THERE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_NOTE = 4096
_CREATED = "created"
"""The state of a container that has never started. As a filter, Podman has two words for it."""
_MAX_AGE = 7 * 24 * 60 * 60
"""Seconds after which an engine that never answers is not tried any more."""


@contextmanager
def noted_start(url: str) -> Generator[Mapping[str, str]]:
    """A context in which a container is created and started at the engine at ``url``, with the labels that it gets. Blocks.

    The note stays if the engine has not answered what became of the container.
    """
    start = secrets.token_hex(8)

    def make() -> tuple[str, int]:
        name = f"codeact-team-{os.getpid()}-{secrets.token_hex(8)}.start"
        path = os.path.join(tempfile.gettempdir(), name)
        return path, os.open(path, _NEW, 0o600)

    path, descriptor = make_held(make)
    try:
        os.write(descriptor, f"{start} {url}".encode())
        yield {_START_LABEL: start}
        os.unlink(path)
    except EngineError as error:
        if isinstance(error.__cause__, APIError):
            os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def remove_noted(note: Path) -> None:
    """Remove the container of a note, if it has never started and its process has ended, and the note. Blocks.

    Raises an ``OSError`` if the note cannot be read, and an ``EngineError`` if its engine does not answer. Then the note
    stays, for a week.
    """
    with suppress(FileNotFoundError):
        descriptor = os.open(note, _THERE)
        try:
            status = os.fstat(descriptor)
            # the author of a note chooses where this process connects to
            is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
            if is_ours and lock(descriptor) and is_the_one(descriptor, str(note)):
                start, _, url = os.pread(descriptor, _MAX_NOTE, 0).decode(errors="replace").partition(" ")
                age = time.time() - status.st_mtime
                try:
                    # a container that was requested just before its process was killed may be created later
                    is_done = not url or _remove_unstarted(start, url) or age > REQUEST_TIMEOUT
                except EngineError:
                    if age > _MAX_AGE:
                        os.unlink(note)
                    raise
                if is_done:
                    os.unlink(note)
        finally:
            os.close(descriptor)


def _remove_unstarted(start: str, url: str) -> bool:
    """Remove a container that was created and never started. Returns whether there was one."""
    with closing(connect(url)) as client, translated(url):
        listed = client.containers(all=True, filters={"label": f"{_START_LABEL}={start}"})
        found = [container for container in listed if container["State"] == _CREATED]
        for container in found:
            _remove_created(client, url, container["Id"])
    return bool(found)


def _remove_created(client: Client, url: str, container: str) -> None:
    """Remove a container that has never started. One that starts after all ends by itself, or is not ours to remove."""
    # Podman counts one as running to which its owner had attached
    client.remove_container(container, v=True, force=describe(client, url).is_podman)


_CLOCK_SKEW = 60
"""Seconds by which the clocks of the engine and the host may differ."""


@dataclass(frozen=True)
class Orphan:
    """A container of ours, running or stopped, whose owner on this host has ended."""

    id: str
    name: str
    owner: str
    """The process that created it, as ``host:process``."""
    image: str
    state: str
    """As the engine calls it, such as ``running`` or ``exited``."""


async def list_orphans() -> list[Orphan]:
    """Return the orphans of this host on the current engine. Other hosts' are not recognized. Raises an ``EngineError``."""
    return await asyncio.to_thread(at_engine, _orphans)


async def remove_orphan(orphan: Orphan) -> None:
    """Remove an orphan with what runs inside, unless it is gone already. Raises an ``EngineError``."""

    def remove(client: Client, url: str) -> None:
        with translated(url), suppress(NotFound):
            client.remove_container(orphan.id, force=True, v=True)

    await asyncio.to_thread(at_engine, remove)


def remove_unstarted(client: Client, url: str) -> None:
    """Remove the orphans that were never started, because their owner was killed at the wrong moment. Blocks.

    Nothing has ever run in them, so nothing is lost. A failure is only logged.
    """
    for orphan in _orphans(client, url, state=_CREATED):
        try:
            with translated(url):
                _remove_created(client, url, orphan.id)
        except EngineError as error:
            # other starts remove them as well
            logger.debug("container %s, which never started, is not removed: %s", orphan.name, error)


def _orphans(client: Client, url: str, state: str | None = None) -> list[Orphan]:
    with translated(url):
        found: list[dict[str, Any]] = client.containers(all=True, filters={"label": LABEL})
    return [
        Orphan(
            id=container["Id"],
            name=container["Names"][0].lstrip("/"),
            owner=container["Labels"][LABEL],
            image=container["Image"],
            state=container["State"],
        )
        for container in found
        if state in (None, container["State"]) and _owner_has_ended(container["Labels"], container["Created"])
    ]


def _owner_has_ended(labels: Mapping[str, str], created: float) -> bool:
    host, _, process = labels[LABEL].rpartition(":")
    here = process_namespace()
    # in another namespace, the same number belongs to another process
    if host != platform.node() or labels.get(NAMESPACE_LABEL, here) != here or not process.isdecimal():
        return False
    # numbers are reused, after a restart of the machine very soon
    return not is_running(int(process)) or (
        sys.platform == "linux" and _start_of(process) > created + _CLOCK_SKEW
    )


def _start_of(process: str) -> float:
    """When a process started, in seconds since the epoch; 0 if it has just ended."""
    try:
        ticks = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
        boot = Path("/proc/stat").read_text().partition("btime ")[2].split()[0]
    except OSError:
        return 0
    return int(boot) + int(ticks) / os.sysconf("SC_CLK_TCK")
