"""Writing files of this machine as a whole or not at all, without following links that code may have planted.

A file has no name until it is whole, so nothing is left of it when the process is killed. On a file system without such
files it has a temporary name of ours until then; what a killed process has left under such a name is removed by the next one
that writes there.

A :class:`Directory` overwrites nothing but files that were put there in this way before and that nobody has changed since:
each has a mark, an extended attribute with its size and time. Where the file system takes no marks, nothing is overwritten.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import PurePosixPath
from typing import Self

from codeact_team.files.opening import below, lock, opened_file, parent_of, parts_of
from codeact_team.files.trees import DIRECTORY, clone

_MARK = "user.codeact-team.put"
_CHUNK = 1 << 20
_CHANGE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_UNNAMED = os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_TMPFILE", os.O_DIRECTORY)
_NO_UNNAMED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
"""Errors for a directory whose file system has no files without a name."""
_TEMPORARY = re.compile(r"\.put-[0-9a-f]{16}")


class Taken(FileExistsError):
    """The name belongs to something else, which is not to be overwritten."""


class Directory:
    """A directory to write into, open as ``top``.

    New files and directories are this process's, as the umask says; with ``follows_owner`` they get the directory's owner
    and its permissions to write.
    """

    def __init__(self, top: int, *, follows_owner: bool = False) -> None:
        self.top = top
        self._owner: tuple[int, int] | None = None
        self._more = 0
        self._tidied: set[str] = set()
        """Directories from which what killed processes have left was removed."""
        if follows_owner:
            status = os.fstat(top)
            self._more = status.st_mode & 0o022
            if os.geteuid() == 0:
                self._owner = status.st_uid, status.st_gid

    def make(self, path: str) -> None:
        """Make a directory and its parents, if missing; an ``OSError`` if something else has that name."""
        descriptor = os.dup(self.top)
        try:
            for part in parts_of(path):
                with suppress(FileExistsError):
                    os.mkdir(part, 0o777, dir_fd=descriptor)
                    self._give(part, descriptor)
                inner = os.open(part, DIRECTORY, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
        finally:
            os.close(descriptor)

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link, unless it exists; :class:`Taken` if something else has that name."""
        above, _, name = path.rpartition("/")
        with below(self.top, above) as directory:
            try:
                os.symlink(target, name, dir_fd=directory)
            except FileExistsError:
                with suppress(OSError):
                    if os.readlink(name, dir_fd=directory) == target:
                        return
                raise Taken(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
            if self._owner is not None:
                os.chown(name, *self._owner, dir_fd=directory, follow_symlinks=False)

    def remove(self, path: str) -> None:
        """Remove a file that we have put there, unless it was changed since; an ``OSError`` if it does not exist."""
        above, _, name = path.rpartition("/")
        with below(self.top, above) as directory, opened_file(directory, name) as file:
            if is_unchanged(file):
                os.unlink(name, dir_fd=directory)

    def _give(self, name: str, directory: int) -> None:
        """Set the owner and the permissions of a new directory."""
        if self._owner is not None:
            os.chown(name, *self._owner, dir_fd=directory, follow_symlinks=False)
        if self._more:
            with below(directory, name) as inner:
                os.fchmod(inner, 0o755 | self._more)

    @contextmanager
    def new_file(self, path: str, *, mode: int = 0o666) -> Generator[NewFile]:
        """Open a new file in an existing directory below; unless it is given its name, nothing is left of it."""
        above, _, name = path.rpartition("/")
        with below(self.top, above) as directory:
            if above not in self._tidied:
                _tidy(directory)
                self._tidied.add(above)
            with NewFile(directory, name, mode | self._more) as file:
                if self._owner is not None:
                    os.fchown(file.descriptor, *self._owner)
                if self._more:
                    os.fchmod(file.descriptor, mode | self._more)
                yield file


class NewFile:
    """A file that gets its name when it is whole. A context manager that closes it.

    Args:
        directory: The directory, open.
        name: Its name there.
        mode: Its permissions.
    """

    def __init__(self, directory: int, name: str, mode: int) -> None:
        self._directory = directory
        self._name = name
        self._temporary: str | None = None
        """The name that it has until then, if it needs one."""
        try:
            self.descriptor: int = os.open(".", _UNNAMED, mode, dir_fd=directory)
        except OSError as error:
            if error.errno not in _NO_UNNAMED:
                raise
            self._temporary = _temporary_name()
            self.descriptor = os.open(self._temporary, _NEW, mode, dir_fd=directory)
            # whoever finds it under a temporary name knows that it is still being written
            lock(self.descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._temporary is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._temporary, dir_fd=self._directory)
        os.close(self.descriptor)

    def write(self, data: bytes) -> None:
        """Append data. Long runs of zeros become holes."""
        _write_with_holes(self.descriptor, data)

    def clone(self, source: int, size: int) -> bool:
        """Take the first bytes of an open file without copying them, unless the file system cannot; returns whether it can."""
        if not clone(source, self.descriptor):
            return False
        if os.fstat(self.descriptor).st_size > size:
            os.ftruncate(self.descriptor, size)
        return True

    def settle(self) -> None:
        """Give it its name; :class:`Taken` if something else has that."""
        if not self._settles_as(self._name):
            raise Taken(errno.EEXIST, os.strerror(errno.EEXIST), self._name)

    def settle_beside(self) -> str:
        """Give it its name, or where that is taken, one with a number. Returns the name."""
        return next(name for name in numbered(self._name) if self._settles_as(name))

    def _settles_as(self, name: str) -> bool:
        _mark(self.descriptor)
        if self._takes(name):
            return True
        with suppress(OSError), opened_file(self._directory, name) as there:
            if same_content(there, self.descriptor):
                return True
            if is_unchanged(there):
                self._replace(name)
                return True
        return False

    def replace(self) -> None:
        """Give it its name, whatever has that now; a link is replaced, not followed."""
        if self._temporary is not None or not self._takes(self._name):
            self._replace(self._name)

    def _takes(self, name: str) -> bool:
        """Give it a name, unless something has that. Returns whether it has got it."""
        try:
            self._link(name)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ELOOP):
                raise
            return False
        return True

    def _link(self, name: str) -> None:
        if self._temporary is None:
            os.link(f"/proc/self/fd/{self.descriptor}", name, dst_dir_fd=self._directory)
        else:
            os.close(os.open(name, _NEW, 0o600, dir_fd=self._directory))
            self._replace(name)

    def _replace(self, name: str) -> None:
        if self._temporary is None:
            # a file without a name cannot take the name of another
            temporary = _temporary_name()
            lock(self.descriptor)
            self._link(temporary)
            self._temporary = temporary
        os.replace(self._temporary, name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        self._temporary = None


def _temporary_name() -> str:
    return f".put-{secrets.token_hex(8)}"


def _tidy(directory: int) -> None:
    """Remove temporary files of processes that were killed; those that are still being written are locked."""
    owners = {os.geteuid(), os.fstat(directory).st_uid}
    try:
        # it may be open only to be passed through
        listed = os.open(".", DIRECTORY, dir_fd=directory)
    except PermissionError:
        return
    try:
        names = list(filter(_TEMPORARY.fullmatch, os.listdir(listed)))
    finally:
        os.close(listed)
    for name in names:
        # somebody else's, or gone meanwhile
        with suppress(OSError), opened_file(directory, name, _CHANGE) as file:
            if os.fstat(file).st_uid in owners and lock(file):
                os.unlink(name, dir_fd=directory)


def numbered(name: str) -> Iterator[str]:
    """The name of a file, then the same with a number, for where the name is taken."""
    path = PurePosixPath(name)
    return chain([name], (f"{path.stem}-{number}{path.suffix}" for number in count(2)))


def _mark(file: int) -> None:
    """Mark an open file as put there by us, with its present size and time."""
    # file systems without attributes, and machines without this call
    with suppress(OSError, AttributeError):
        os.setxattr(file, _MARK, _state(file))


def is_unchanged(file: int) -> bool:
    """Whether an open file has our mark, and has not been changed since."""
    try:
        return os.getxattr(file, _MARK) == _state(file)
    except (OSError, AttributeError):
        return False


def _state(file: int) -> bytes:
    status = os.fstat(file)
    return f"{status.st_size} {status.st_mtime_ns}".encode()


def same_content(one: int, other: int) -> bool:
    """Whether two open files have the same content."""
    if os.fstat(one).st_size != os.fstat(other).st_size:
        return False
    place = 0
    while True:
        pieces: Sequence[bytes] = [os.pread(file, _CHUNK, place) for file in (one, other)]
        if pieces[0] != pieces[1]:
            return False
        if not pieces[0]:
            return True
        place += len(pieces[0])


@contextmanager
def whole_file(
    path: str | os.PathLike[str], *, replace: bool = True, mode: int = 0o666
) -> Generator[NewFile]:
    """Open a new file, which gets its name at the end of the block unless that fails.

    Args:
        path: As of :func:`codeact_team.files.opening.open_named`.
        replace: Whether it may replace a file.
        mode: Its permissions.

    Raises:
        OSError: If it cannot be written, or something else has the name.
    """
    with place_of(path, replace=replace) as (directory, name), directory.new_file(name, mode=mode) as file:
        yield file
        file.replace()


@contextmanager
def place_of(path: str | os.PathLike[str], *, replace: bool = True) -> Generator[tuple[Directory, str]]:
    """Open the directory for a :func:`whole_file`, and check that it can be written; also yields its name there."""
    with parent_of(path) as (top, name):
        directory = Directory(top)
        with suppress(FileNotFoundError):
            there = os.stat(name, dir_fd=top, follow_symlinks=False).st_mode
            if stat.S_ISLNK(there):
                raise OSError(errno.ELOOP, "it is a link: name its target")
            if not stat.S_ISREG(there):
                raise OSError(errno.EINVAL, "it is not a file")
            if not replace:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        with directory.new_file(name):
            pass
        yield directory, name


def write_whole(directory: int, name: str, data: bytes, *, mode: int = 0o600, sync: bool = False) -> None:
    """Write a small file, which replaces the one with this name; for its owner only by default.

    Args:
        directory: The directory, open.
        name: The name of the file.
        data: Its content.
        mode: Its permissions.
        sync: Whether the content survives a power cut once the file has its name.
    """
    with NewFile(directory, name, mode) as file:
        file.write(data)
        if sync:
            os.fsync(file.descriptor)
        file.replace()


def is_temporary(name: str) -> bool:
    """Whether a file of this name is one that is being written, or that a killed process has left."""
    return _TEMPORARY.fullmatch(name) is not None


_BLOCK = 4096
"""Bytes: smaller holes save no room on the usual file systems."""
_ZEROS = bytes(_BLOCK)


def _write_with_holes(descriptor: int, data: bytes) -> None:
    """Append data to a file. Long runs of zeros become holes, which take no room on the disk."""
    whole = memoryview(data)
    for start, end, is_hole in _runs(data):
        if is_hole:
            os.ftruncate(descriptor, os.lseek(descriptor, end - start, os.SEEK_CUR))
            continue
        left = whole[start:end]
        while left:
            left = left[os.write(descriptor, left) :]


def size_without_holes(data: bytes) -> int:
    """Return the number of bytes that ``data`` takes on a disk if it is written with holes."""
    return sum(end - start for start, end, is_hole in _runs(data) if not is_hole)


def _runs(data: bytes) -> Iterator[tuple[int, int, bool]]:
    """The begin and the end of each run of ``data``, and whether it is a hole. A block that is cut short is no hole."""
    begin, was_hole = 0, False
    for start in range(0, len(data), _BLOCK):
        is_hole = data[start : start + _BLOCK] == _ZEROS
        if is_hole != was_hole:
            if start > begin:
                yield begin, start, was_hole
            begin, was_hole = start, is_hole
    if data:
        yield begin, len(data), was_hole
