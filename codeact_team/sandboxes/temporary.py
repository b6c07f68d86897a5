"""Temporary directories of this package, and those that are left because their process was killed."""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

from codeact_team.system import trees
from codeact_team.system.kernel import is_running

_NAME = re.compile(r"codeact-team-(?P<process>\d+)-[a-z0-9_]{8}")


class TemporaryDirectory:
    """A new directory, held by a lock that the kernel releases however this process ends."""

    def __init__(self) -> None:
        self.path = os.path.realpath(tempfile.mkdtemp(prefix=f"codeact-team-{os.getpid()}-"))
        self._descriptor = os.open(self.path, trees.DIRECTORY)
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def remove(self) -> None:
        """Remove it with all that is in it, or raise an OSError; it may be gone already. Blocks."""
        os.close(self._descriptor)
        remove_orphaned(Path(self.path))


def orphaned_directories() -> list[Path]:
    """The temporary directories of this package whose process has ended, and that this user can remove."""
    with os.scandir(tempfile.gettempdir()) as entries:
        return sorted(Path(entry.path) for entry in entries if _is_orphaned(entry))


def remove_orphaned(directory: Path) -> None:
    """Remove one of :func:`orphaned_directories`, or raise an OSError; it may be gone already. Blocks."""
    with suppress(FileNotFoundError):
        trees.remove(str(directory))


def _is_orphaned(entry: os.DirEntry[str]) -> bool:
    if (named := _NAME.fullmatch(entry.name)) is None or not entry.is_dir(follow_symlinks=False):
        return False
    try:
        owner = entry.stat(follow_symlinks=False).st_uid
    except FileNotFoundError:
        # another one has just removed it
        return False
    # others' directories are not ours to judge; root gives its own away to the user that code runs as
    is_ours = os.geteuid() in (0, owner)
    return is_ours and not is_running(int(named["process"])) and not _is_held(entry.path)


def _is_held(directory: str) -> bool:
    """Whether a process holds it, such as one of another namespace, whose number says nothing here."""
    try:
        descriptor = os.open(directory, trees.DIRECTORY)
    except OSError:
        # it has just gone, or code has left it so that not even its owner can open it
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
