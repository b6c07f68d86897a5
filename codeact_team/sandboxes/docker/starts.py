"""Notes of containers that are about to start. Where this process is killed before they do, the next run removes them.

A container that is made ends with this process once it has started, and not before that.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from docker.errors import APIError

from codeact_team.errors import EngineError
from codeact_team.sandboxes.docker.container import LABEL
from codeact_team.sandboxes.docker.engine import REQUEST_TIMEOUT, connect, translated
from codeact_team.sandboxes.temporary import is_the_one, lock

logger = logging.getLogger(__name__)

START_LABEL = f"{LABEL}.start"
"""The label that names the start of a container; its note knows it."""

_NAME = re.compile(r"codeact-team-\d+-[0-9a-f]{16}\.start")
_NEW = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_THERE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAX_NOTE = 4096
_MAX_AGE = 7 * 24 * 60 * 60
"""Seconds after which an engine that never answers is asked no more."""


@contextmanager
def noted_start(url: str) -> Generator[Mapping[str, str]]:
    """Within it, a container is made and started at the engine at ``url``; the labels that it gets. Blocks.

    The note stays where the engine has not said what became of the container.
    """
    start = secrets.token_hex(8)
    path, descriptor = _make_note(f"{start} {url}")
    try:
        yield {START_LABEL: start}
        os.unlink(path)
    except EngineError as error:
        if isinstance(error.__cause__, APIError):
            os.unlink(path)
        raise
    finally:
        os.close(descriptor)


def left_notes() -> list[Path]:
    """The notes of this user, some of which may be in use."""
    with os.scandir(tempfile.gettempdir()) as entries:
        return [Path(entry.path) for entry in entries if _NAME.fullmatch(entry.name)]


def remove_noted(note: Path) -> None:
    """Remove the container that a note tells of, if it has never started and its process has ended; and the note. Blocks.

    Raises:
        OSError: If the note cannot be read.
        EngineError: If its engine does not answer; the note stays, for a week.
    """
    with suppress(FileNotFoundError):
        descriptor = os.open(note, _THERE)
        try:
            status = os.fstat(descriptor)
            # whoever writes one says where this process connects to
            is_ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
            if is_ours and lock(descriptor) and is_the_one(descriptor, str(note)):
                start, _, url = os.pread(descriptor, _MAX_NOTE, 0).decode(errors="replace").partition(" ")
                age = time.time() - status.st_mtime
                try:
                    # one that was asked for when its process was killed may be made later
                    is_done = not url or _remove_unstarted(start, url) or age > REQUEST_TIMEOUT
                except EngineError:
                    if age > _MAX_AGE:
                        os.unlink(note)
                    raise
                if is_done:
                    os.unlink(note)
        finally:
            os.close(descriptor)


def _make_note(text: str) -> tuple[str, int]:
    """A new note, and what locks it while it is open."""
    while True:
        name = f"codeact-team-{os.getpid()}-{secrets.token_hex(8)}.start"
        path = os.path.join(tempfile.gettempdir(), name)
        descriptor = os.open(path, _NEW, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        # another process may have taken it for one that was left
        if is_the_one(descriptor, path):
            os.write(descriptor, text.encode())
            return path, descriptor
        os.close(descriptor)


def _remove_unstarted(start: str, url: str) -> bool:
    """Remove a container that was made and never started; whether there was one."""
    with closing(connect(url)) as client, translated(url):
        filters = {"label": f"{START_LABEL}={start}", "status": "created"}
        found = client.containers(all=True, filters=filters)
        for container in found:
            # not by force: should it start after all, it ends by itself
            client.remove_container(container["Id"], v=True)
    return bool(found)
