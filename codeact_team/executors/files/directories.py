"""Writing files into directories of this machine, without following links that code may have planted.

Nothing is overwritten but what was put there in this way before and nobody has changed since: each such file has a mark, an
extended attribute with its size and time. Where the file system takes none, nothing is overwritten at all. What is written has
no name until it is whole, so that nothing is left of it when the process is killed. Where a file system has no such files, it
has one of ours until then; what a process that was killed has left is removed when more is put there.
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

from codeact_team.sandbox.system.file_locks import lock
from codeact_team.sandbox.system.holes import write_with_holes
from codeact_team.sandbox.system.named_paths import open_named, parent_of
from codeact_team.sandbox.system.trees import DIRECTORY

_MARK = "user.codeact-team.put"
_CHUNK = 1 << 20
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_UNNAMED = os.O_RDWR | os.O_CLOEXEC | getattr(os, "O_TMPFILE", os.O_DIRECTORY)
_NO_UNNAMED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
"""What is said of a directory whose file system has no files without a name."""
_PASSING = re.compile(r"\.put-[0-9a-f]{16}")


class Taken(FileExistsError):
    """There is something else of that name, which is not to be overwritten."""


@contextmanager
def opened(directory: str | os.PathLike[str] | int) -> Generator[int]:
    """A directory, open, by its path or by the descriptor that somebody else has of it.

    Raises:
        OSError: As :func:`open_named`, which follows no link that code may have planted.
    """
    if isinstance(directory, int):
        descriptor = os.dup(directory)
    else:
        descriptor = open_named(directory, DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def below(top: int, path: str) -> Generator[int]:
    """The directory at a path below the one open as ``top``. Follows no link.

    Raises:
        OSError: If there is none.
    """
    descriptor = os.dup(top)
    try:
        for part in _parts(path):
            inner = os.open(part, DIRECTORY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened_file(top: int, path: str, flags: int = _READ) -> Generator[int]:
    """The regular file at a path below the directory open as ``top``. Follows no link, waits for no pipe.

    Args:
        top: The directory.
        path: Of the file.
        flags: How it is opened, to be read by default.

    Raises:
        OSError: If there is none.
    """
    above, _, name = path.rpartition("/")
    with below(top, above) as directory:
        descriptor = os.open(name, flags, dir_fd=directory)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        yield descriptor
    finally:
        os.close(descriptor)


def _parts(path: str) -> Sequence[str]:
    """The names in a path below a directory, which may come from hostile code.

    Raises:
        OSError: If it leads elsewhere.
    """
    parts = path.split("/") if path else []
    if {"", ".", ".."} & {*parts}:
        raise OSError(errno.EINVAL, "it is no path below a directory")
    return parts


class Directory:
    """A directory to write into.

    Args:
        top: It, open.
        follows_owner: Whether what is made belongs to whom the directory belongs to, and may be written by whom it may be;
            else it is this process's, as the umask says.
    """

    def __init__(self, top: int, *, follows_owner: bool = False) -> None:
        self.top = top
        self._owner: tuple[int, int] | None = None
        self._more = 0
        self._tidied: set[str] = set()
        """Directories in which nothing is left of what was put there by processes that were killed."""
        if follows_owner:
            status = os.fstat(top)
            self._more = status.st_mode & 0o022
            if os.geteuid() == 0:
                self._owner = status.st_uid, status.st_gid

    def make(self, path: str) -> None:
        """Make a directory, and those above it, that are not there.

        Raises:
            OSError: If something else is in its place.
        """
        descriptor = os.dup(self.top)
        try:
            for part in _parts(path):
                with suppress(FileExistsError):
                    os.mkdir(part, 0o777, dir_fd=descriptor)
                    self._give(part, descriptor)
                inner = os.open(part, DIRECTORY, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
        finally:
            os.close(descriptor)

    def link(self, path: str, target: str) -> None:
        """Make a symbolic link, unless it is there.

        Raises:
            Taken: If something else is.
            OSError: If it cannot be made.
        """
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
        """Remove a file that was put there by us, if nobody has changed it since.

        Raises:
            OSError: If there is none.
        """
        above, _, name = path.rpartition("/")
        with below(self.top, above) as directory, opened_file(directory, name) as file:
            if is_unchanged(file):
                os.unlink(name, dir_fd=directory)

    def _give(self, name: str, directory: int) -> None:
        """Let a directory that was made just now have its owner and its permissions."""
        if self._owner is not None:
            os.chown(name, *self._owner, dir_fd=directory, follow_symlinks=False)
        if self._more:
            with below(directory, name) as inner:
                os.fchmod(inner, 0o755 | self._more)

    @contextmanager
    def new_file(self, path: str, *, mode: int = 0o666) -> Generator[NewFile]:
        """A file that is there, under its name, once it is whole; else nothing is left of it.

        Args:
            path: Below the directory; the directories above it exist.
            mode: Its permissions.
        """
        above, _, name = path.rpartition("/")
        with below(self.top, above) as directory:
            if above not in self._tidied:
                _tidy(directory)
                self._tidied.add(above)
            file = NewFile(directory, name, mode | self._more)
            try:
                if self._owner is not None:
                    os.fchown(file.descriptor, *self._owner)
                if self._more:
                    os.fchmod(file.descriptor, mode | self._more)
                yield file
            finally:
                file.close()


class NewFile:
    """A file that is whole when it gets its name, in an open directory."""

    def __init__(self, directory: int, name: str, mode: int) -> None:
        self._directory = directory
        self._name = name
        self._passing: str | None = None
        """The name that it has until then, if it needs one."""
        try:
            self.descriptor = os.open(".", _UNNAMED, mode, dir_fd=directory)
        except OSError as error:
            if error.errno not in _NO_UNNAMED:
                raise
            self._passing = _passing()
            self.descriptor = os.open(self._passing, _NEW, mode, dir_fd=directory)
        # whoever finds it under a passing name knows that it is at work
        lock(self.descriptor)

    def write(self, data: bytes) -> None:
        """Add to what is in it."""
        write_with_holes(self.descriptor, data)

    def settle(self) -> None:
        """Give it its name.

        Raises:
            Taken: If there is something else of that name.
        """
        if not self._settles_as(self._name):
            raise Taken(errno.EEXIST, os.strerror(errno.EEXIST), self._name)

    def settle_beside(self) -> str:
        """Give it its name, or where that is taken, one with a number; the name that it has got."""
        return next(name for name in numbered(self._name) if self._settles_as(name))

    def _settles_as(self, name: str) -> bool:
        mark(self.descriptor)
        try:
            self._take(name)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ELOOP):
                raise
        else:
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
        self._replace(self._name)

    def _take(self, name: str) -> None:
        """Give it a name that nothing has."""
        if self._passing is None:
            os.link(f"/proc/self/fd/{self.descriptor}", name, dst_dir_fd=self._directory)
        else:
            os.close(os.open(name, _NEW, 0o600, dir_fd=self._directory))
            self._replace(name)

    def _replace(self, name: str) -> None:
        if self._passing is None:
            # a file without a name cannot take that of another
            passing = _passing()
            self._take(passing)
            self._passing = passing
        os.rename(self._passing, name, src_dir_fd=self._directory, dst_dir_fd=self._directory)

    def close(self) -> None:
        """Let go of it, and remove it where it has no name of its own."""
        if self._passing is not None:
            with suppress(FileNotFoundError):
                os.unlink(self._passing, dir_fd=self._directory)
        os.close(self.descriptor)


def _passing() -> str:
    return f".put-{secrets.token_hex(8)}"


def _tidy(directory: int) -> None:
    """Remove what processes that were killed have left under passing names; those that are at work have theirs locked."""
    owners = {os.geteuid(), os.fstat(directory).st_uid}
    try:
        # it may be open only to be passed through
        listed = os.open(".", DIRECTORY, dir_fd=directory)
    except PermissionError:
        return
    try:
        passing = list(filter(_PASSING.fullmatch, os.listdir(listed)))
    finally:
        os.close(listed)
    for name in passing:
        # somebody else's, or gone meanwhile
        with suppress(OSError), opened_file(directory, name, _READ | os.O_RDWR) as file:
            if os.fstat(file).st_uid in owners and lock(file):
                os.unlink(name, dir_fd=directory)


def numbered(name: str) -> Iterator[str]:
    """The name of a file, and those with numbers that it gets where that is taken."""
    path = PurePosixPath(name)
    return chain([name], (f"{path.stem}-{number}{path.suffix}" for number in count(2)))


def mark(file: int) -> None:
    """Note in a file that it was put there by us, as it is now."""
    # file systems without attributes, and machines without this call
    with suppress(OSError, AttributeError):
        os.setxattr(file, _MARK, _state(file))


def is_unchanged(file: int) -> bool:
    """Whether a file was put there by us, and has not been changed since."""
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
    """A file that is there at the end of this, unless something fails within it.

    Args:
        path: Where, as of :func:`codeact_team.sandbox.system.named_paths.open_named`.
        replace: Whether it may replace a file that is there.
        mode: Its permissions.

    Raises:
        OSError: If it cannot be written, or something else is there.
    """
    with place_of(path, replace=replace) as (directory, name), directory.new_file(name, mode=mode) as file:
        yield file
        file.replace()


@contextmanager
def place_of(path: str | os.PathLike[str], *, replace: bool = True) -> Generator[tuple[Directory, str]]:
    """Where such a file is to be, open, and the name that it gets there.

    Raises:
        OSError: As :func:`whole_file`.
    """
    with parent_of(path) as (top, name):
        directory = Directory(top)
        with suppress(FileNotFoundError):
            _check(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode, replace=replace)
        with directory.new_file(name):
            pass
        yield directory, name


def _check(mode: int, *, replace: bool) -> None:
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, "it is a link: name what it leads to")
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is no file")
    if not replace:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
