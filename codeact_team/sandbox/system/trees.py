"""Removing what hostile code has left: trees of any depth, with any permissions."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OURS = 0o700


def remove(top: str, within: int | None = None) -> None:
    """Remove the directory ``top`` with all that is in it; one in the directory open as ``within``, if that is given.

    A deep tree needs no more stack, descriptors or length of a path than a flat one. Follows no links, also where
    something still writes to the tree. What cannot be removed does not keep the rest.

    Raises:
        OSError: If something is left: why the first of it could not be removed.
    """
    with _opened(top, within) as directory:
        removal = _Removal(directory)
        removal.empty()
    if removal.failures:
        raise removal.failures[0]
    os.rmdir(top, dir_fd=within)


class _Removal:
    """Empties the directory open as ``top``, and notes why something is left."""

    def __init__(self, top: int) -> None:
        self._top = top
        self.failures: list[OSError] = []
        # random: nothing can have been given these names before
        prefix = os.urandom(8).hex()
        self._unused = (f"{prefix}-{number}" for number in itertools.count())

    def empty(self) -> None:
        directories = self._remove_files(self._top)
        while directories:
            directories += self._remove_directory(directories.pop())

    def _remove_directory(self, name: str) -> list[str]:
        """Remove a directory of the top. Returns the names that the directories in it have at the top now."""
        moved: list[str] = []
        with self._noting_failures(), _opened(name, self._top) as directory:
            for inner in self._remove_files(directory):
                with self._noting_failures():
                    # moved up instead of walked into: the depth is not bounded, the length of a path is
                    with _opened(inner, directory):
                        unused = next(self._unused)
                    os.rename(inner, unused, src_dir_fd=directory, dst_dir_fd=self._top)
                    moved.append(unused)
            os.rmdir(name, dir_fd=self._top)
        return moved

    def _remove_files(self, directory: int) -> list[str]:
        """Remove the files. Returns the names of the directories."""
        directories: list[str] = []
        with os.scandir(directory) as entries:
            for entry in list(entries):
                if entry.is_dir(follow_symlinks=False):
                    directories.append(entry.name)
                    continue
                with self._noting_failures():
                    os.unlink(entry.name, dir_fd=directory)
        return directories

    @contextmanager
    def _noting_failures(self) -> Generator[None]:
        try:
            yield
        except FileNotFoundError:
            pass
        except OSError as error:
            self.failures.append(error)


@contextmanager
def _opened(name: str, parent: int | None = None) -> Generator[int]:
    """Open a directory, and let its owner change it."""
    try:
        directory = os.open(name, DIRECTORY, dir_fd=parent)
    except PermissionError:
        os.chmod(name, _OURS, dir_fd=parent, follow_symlinks=False)
        directory = os.open(name, DIRECTORY, dir_fd=parent)
    try:
        if stat.S_IMODE(os.fstat(directory).st_mode) & _OURS != _OURS:
            os.fchmod(directory, _OURS)
        yield directory
    finally:
        os.close(directory)
