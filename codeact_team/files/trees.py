"""Walking, cloning, moving and removing files and trees that hostile code has made or still changes: of any depth, with any permissions.

Runs inside sandboxes, too: the standard library only.
"""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from fcntl import ioctl

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OURS = 0o700
_FICLONE = 0x40049409
_HELD = 64
"""Directories inside one another that :func:`walk` holds open. One that is deeper closes the outermost for a while."""


def clone(source: int, target: int) -> bool:
    """Fill an empty file, open as ``target``, with the content of ``source``, whose blocks it shares until one is changed.

    Returns whether the file system can do that.
    """
    try:
        ioctl(target, _FICLONE, source)
    except OSError:
        os.ftruncate(target, 0)
        return False
    return True


class Visited:
    """A directory that :func:`walk` visits: its descriptor, open until the walk continues, and the names on the way to it."""

    def __init__(self, descriptor: int, names: list[str], device: int | None) -> None:
        self.descriptor: int = descriptor
        self.names = names
        self._device = device
        self._entered: list[str] = []
        self._identity: tuple[int, int] | None = None

    def entries(self) -> Iterator[tuple[str, os.stat_result]]:
        """The entries with their status, without those that are removed meanwhile. No link is followed."""
        with os.scandir(self.descriptor) as entries:
            for entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                yield entry.name, status

    def enter(self, name: str, status: os.stat_result) -> None:
        """Let the walk visit a directory in this one, unless that is on a file system which it does not visit."""
        if self._device in (None, status.st_dev):
            self._entered.append(name)

    def next_entered(self) -> str | None:
        """The name of the directory to visit next."""
        return self._entered.pop() if self._entered else None

    def suspend(self) -> None:
        """Close the descriptor, but remember which directory it is."""
        self._identity = _identity(self.descriptor)
        self.close()
        self.descriptor = -1

    def resume(self, inner: int) -> None:
        """Open the directory again from one in it; an ``OSError`` if that was moved meanwhile."""
        if self.descriptor < 0:
            self.descriptor = os.open("..", DIRECTORY, dir_fd=inner)
            if _identity(self.descriptor) != self._identity:
                raise OSError("a directory was moved meanwhile")

    def close(self) -> None:
        """Close the descriptor."""
        if self.descriptor >= 0:
            os.close(self.descriptor)


def walk(
    top: int, refused: Callable[[int, str, OSError], None] | None = None, *, leaves_device: bool = False
) -> Generator[Visited]:
    """Visit the directory open as ``top``, which stays open, and those below it that the caller enters.

    Follows no links. However deep the tree is, the stack and the number of descriptors are bounded, and no path gets too long.

    Args:
        top: The directory.
        refused: Called with a directory, a name in it and an error if that cannot be opened; by default the error is raised.
            One that was removed meanwhile is no error.
        leaves_device: Whether it also visits other mounted file systems.

    Raises:
        OSError: If a directory cannot be read, or was moved while deeper ones were visited.
    """
    names: list[str] = []
    device = None if leaves_device else os.fstat(top).st_dev
    levels = [Visited(os.dup(top), names, device)]
    try:
        yield levels[0]
        while levels:
            here = levels[-1]
            if (name := here.next_entered()) is None:
                levels.pop()
                try:
                    if levels:
                        names.pop()
                        levels[-1].resume(here.descriptor)
                finally:
                    here.close()
                continue
            try:
                inner = os.open(name, DIRECTORY, dir_fd=here.descriptor)
            except FileNotFoundError:
                continue
            except OSError as error:
                if refused is None:
                    raise
                refused(here.descriptor, name, error)
                continue
            names.append(name)
            levels.append(Visited(inner, names, device))
            if len(levels) > _HELD:
                levels[-_HELD - 1].suspend()
            yield levels[-1]
    finally:
        for level in levels:
            level.close()


def _identity(directory: int) -> tuple[int, int]:
    status = os.fstat(directory)
    return status.st_dev, status.st_ino


def files_below(top: int) -> Iterator[tuple[Visited, str, os.stat_result]]:
    """Everything below the directory open as ``top`` that is no directory: where it is, its name, and its status."""
    for directory in walk(top):
        for name, status in directory.entries():
            if stat.S_ISDIR(status.st_mode):
                directory.enter(name, status)
            else:
                yield directory, name, status


@contextmanager
def opened_own(directory: str | os.PathLike[str]) -> Generator[int]:
    """Open a directory that hostile code cannot have replaced, such as in a cache, following links on the way to it."""
    descriptor = os.open(directory, DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def move(source: str, target: str, *, within: int | None = None, to: int | None = None) -> None:
    """Rename a directory or anything else; a link is renamed, not followed. Paths may be below open directories."""
    os.rename(source, target, src_dir_fd=within, dst_dir_fd=to)


def remove(top: str, within: int | None = None) -> None:
    """Remove a directory, below the directory open as ``within`` if given, with its content.

    A deep tree needs no more stack, descriptors or length of a path than a flat one. Follows no links, even while
    something still writes to the tree. An entry that cannot be removed does not keep the others.

    Raises:
        OSError: If something is left: why the first entry could not be removed.
    """
    with _opened(top, within) as directory:
        removal = _Removal(directory)
        removal.empty()
    if removal.failures:
        raise removal.failures[0]
    os.rmdir(top, dir_fd=within)


class _Removal:
    """Empties the directory open as ``top``, and collects the errors."""

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
        """Remove a directory in the top. Returns the names under which its directories are in the top now."""
        moved: list[str] = []
        with self._noting_failures(), _opened(name, self._top) as directory:
            for inner in self._remove_files(directory):
                with self._noting_failures():
                    # moved up instead of walked into: the depth is not bounded, the length of a path is
                    with _opened(inner, directory):
                        unused = next(self._unused)
                    move(inner, unused, within=directory, to=self._top)
                    moved.append(unused)
            os.rmdir(name, dir_fd=self._top)
        return moved

    def _remove_files(self, directory: int) -> list[str]:
        """Remove the files of a directory. Returns the names of its directories."""
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
    """Open a directory, after giving its owner the permission to change it."""
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
