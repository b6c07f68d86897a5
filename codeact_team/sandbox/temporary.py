"""Temporary directories of this package, and the removal of what killed processes have left on this machine."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import re
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from codeact_team.core.aio import to_the_end
from codeact_team.errors import EngineError
from codeact_team.sandbox.system import trees

logger = logging.getLogger(__name__)

NOBODY = 65534
"""The user to whom root gives a directory in which the code of a container works."""

_NAME = re.compile(r"codeact-team-\d+-[a-z0-9_]{8}")
_NOTE = re.compile(r"codeact-team-\d+-[0-9a-f]{16}\.start")
"""The name of a note; see :mod:`codeact_team.sandbox.docker.leftovers`."""


class TemporaryDirectory:
    """A new directory, held by a lock that the kernel releases when this process ends, for whatever reason.

    As a context manager, it is removed at the end.

    Args:
        place: The directory in which it is created; ``None`` for the usual one.
    """

    def __init__(self, place: Path | None = None) -> None:
        self.path, self._descriptor = _make_held(place)

    def __enter__(self) -> Path:
        return Path(self.path)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove it with its content, unless it is gone already. Blocks. Raises an ``OSError``."""
        try:
            with suppress(FileNotFoundError):
                trees.remove(self.path)
        finally:
            os.close(self._descriptor)


def places() -> list[Path]:
    """The directories for temporary ones: the usual one, and others for when code may write to that."""
    found = (Path(tempfile.gettempdir()), Path("/var/tmp"), Path(os.path.expanduser("~")))
    return list(dict.fromkeys(map(Path.resolve, found)))


def orphaned_directories() -> list[Path]:
    """The temporary directories of this package whose process has ended and that this user can remove."""
    return sorted(path for place in places() for path in _orphaned_in(place))


def remove_orphaned(directory: Path) -> None:
    """Remove one of :func:`orphaned_directories`, unless it is gone already. Blocks. Raises an ``OSError``."""
    with suppress(FileNotFoundError), _taken_over(directory) as is_ours:
        if is_ours:
            trees.remove(str(directory))


def lock(descriptor: int) -> bool:
    """Lock an open file or directory, unless another process holds it. Returns whether it is locked."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_the_one(descriptor: int, path: str) -> bool:
    """Whether the open file or directory still has this path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _make_held(place: Path | None) -> tuple[str, int]:
    while True:
        path = os.path.realpath(tempfile.mkdtemp(prefix=f"codeact-team-{os.getpid()}-", dir=place))
        # until it is held, another process may take it for an orphan
        with suppress(FileNotFoundError):
            descriptor = os.open(path, trees.DIRECTORY)
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if is_the_one(descriptor, path):
                return path, descriptor
            os.close(descriptor)


def _orphaned_in(place: Path) -> list[Path]:
    try:
        with os.scandir(place) as entries:
            return [Path(entry.path) for entry in entries if _is_orphaned(entry)]
    except OSError:
        # it does not exist, or this user cannot read it
        return []


def _is_orphaned(entry: os.DirEntry[str]) -> bool:
    if _NAME.fullmatch(entry.name) is None or not entry.is_dir(follow_symlinks=False):
        return False
    try:
        # not of this user
        if entry.stat(follow_symlinks=False).st_uid not in _owners():
            return False
        with _taken_over(Path(entry.path)) as is_ours:
            return is_ours
    except OSError:
        # another process has just removed it
        return False


def _owners() -> set[int]:
    return {0, NOBODY} if os.geteuid() == 0 else {os.geteuid()}


@contextmanager
def _taken_over(directory: Path) -> Generator[bool]:
    """Hold a directory, unless another process does. The value says whether it is held, so that nobody else uses it.

    The process id in its name is no sign: by now it may belong to another process, or it is from another namespace.
    """
    try:
        descriptor = os.open(directory, trees.DIRECTORY)
    except PermissionError:
        # code has changed its mode so that not even its owner can open it
        os.chmod(directory, 0o700, follow_symlinks=False)
        descriptor = os.open(directory, trees.DIRECTORY)
    try:
        yield lock(descriptor)
    finally:
        os.close(descriptor)


async def remove_leftovers() -> None:
    """Remove temporary directories, and containers that never started, of processes that were killed. Logs failures.

    A cancellation waits for the end, because a run may be shorter than this.
    """
    await to_the_end(asyncio.to_thread(_remove_all))


def _remove_all() -> None:
    # containers come before the directories that they use
    notes = _left_notes()
    if notes:
        # the Docker client takes long to load, and a note is rare
        from codeact_team.sandbox.docker.leftovers import remove_noted

        _remove_each(notes, remove_noted)
    _remove_each(orphaned_directories(), remove_orphaned)


def _left_notes() -> list[Path]:
    try:
        with os.scandir(tempfile.gettempdir()) as entries:
            return [Path(entry.path) for entry in entries if _NOTE.fullmatch(entry.name)]
    except OSError as error:
        logger.debug("notes of killed runs cannot be found: %s", error)
        return []


def _remove_each(paths: list[Path], remove: Callable[[Path], None]) -> None:
    for path in paths:
        try:
            remove(path)
        except (OSError, EngineError) as error:
            logger.debug("%s, which a killed run has left, stays for now: %s", path, error)
