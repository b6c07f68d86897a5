"""Temporary directories of this package, and those that are left because their process was killed."""

from __future__ import annotations

import fcntl
import os
import re
import stat
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from codeact_team.files import trees
from codeact_team.sandbox.users import is_private

_NAME = re.compile(r"codeact-team-\d+-[a-z0-9_]{8}")


class TemporaryDirectory:
    """A new directory in ``place``, held by a lock that the kernel releases when this process ends, for whatever reason.

    As a context manager, it is removed at the end.
    """

    def __init__(self, place: Path | None = None) -> None:
        self.path: str
        self.path, self._descriptor = make_held(lambda: _make(place))

    def __enter__(self) -> Path:
        return Path(self.path)

    def __exit__(self, *_: object) -> None:
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


def make_held(make: Callable[[], tuple[str, int]]) -> tuple[str, int]:
    """Make a file or directory that is locked while its descriptor is open. Returns its path and the descriptor."""
    while True:
        path, descriptor = make()
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        # until it is held, another process may take it for an orphan
        if is_the_one(descriptor, path):
            return path, descriptor
        os.close(descriptor)


def _make(place: Path | None) -> tuple[str, int]:
    while True:
        path = os.path.realpath(tempfile.mkdtemp(prefix=f"codeact-team-{os.getpid()}-", dir=place))
        with suppress(FileNotFoundError):
            return path, os.open(path, trees.DIRECTORY)


def _orphaned_in(place: Path) -> list[Path]:
    try:
        return [
            place / name for name in os.listdir(place) if _NAME.fullmatch(name) and _is_orphaned(place / name)
        ]
    except OSError:
        # it does not exist, or this user cannot read it
        return []


def _is_orphaned(path: Path) -> bool:
    try:
        status = path.lstat()
        # root gives those in which the code of a container works to the sandbox's user
        is_mine = status.st_uid == os.geteuid() or (os.geteuid() == 0 and is_private(status.st_uid))
        if not stat.S_ISDIR(status.st_mode) or not is_mine:
            return False
        with _taken_over(path) as is_ours:
            return is_ours
    except OSError:
        # another process has just removed it
        return False


@contextmanager
def _taken_over(directory: Path) -> Generator[bool]:
    """Hold a directory, unless another process does. The value says whether it is held.

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
