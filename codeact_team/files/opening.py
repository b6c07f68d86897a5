"""Opening files and directories without following links that hostile code may have planted.

Code that ran in a workspace of this machine leaves links there that lead out of it, and looks like the person: its files may
have the same owner. So of a path that a person names, only links are followed that nobody but the system can have made, such
as ``/home`` or ``/var/run``; and below a directory that is open, none at all. A file is only opened if it is a regular one: a
pipe would keep whoever opens it waiting.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import struct
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from codeact_team.files import trees
from codeact_team.files.trees import DIRECTORY

_OF_THE_SYSTEM = ("/", "/home", "/usr", "/var")
"""Directories whose links are followed, if they belong to root and nobody else may write to them."""
_MOST_LINKS = 40
"""As many as the kernel follows."""
_OTHERS_WRITE = 0o022
_LONGEST_PATH = 1024
"""Bytes that macOS takes for one."""
THROUGH = DIRECTORY | getattr(os, "O_PATH", 0)
"""Flags to open a directory on the way: many may be passed through, but not listed."""


def open_named(path: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """Open a file or directory that a person names, absolute or from the current directory; return a descriptor.

    Raises:
        OSError: If it cannot be opened. A link that is not followed is an ``ELOOP`` that says where it leads.
    """
    if not (path := os.fspath(path)):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
    if "\0" in path:
        raise OSError(errno.EINVAL, "there is a null character in its name", path)
    names = _reversed(path)
    here = os.open("/" if path.startswith("/") else ".", THROUGH)
    followed = 0
    try:
        while True:
            name = names.pop() if names else "."
            wanted = THROUGH if names else flags | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                found = os.open(name, wanted, mode, dir_fd=here)
            except OSError as error:
                try:
                    target = os.readlink(name, dir_fd=here)
                except OSError:
                    raise OSError(error.errno, os.strerror(error.errno or 0), path) from None
                followed += 1
                if followed > _MOST_LINKS or not _is_of_the_system(here):
                    raise OSError(errno.ELOOP, _refusal(path, name, names, target), path) from None
                names += _reversed(target)
                if target.startswith("/"):
                    os.close(here)
                    here = os.open("/", THROUGH)
                continue
            if not names:
                return found
            os.close(here)
            here = found
    finally:
        os.close(here)


@contextmanager
def parent_of(path: str | os.PathLike[str]) -> Generator[tuple[int, str]]:
    """Open the directory of a path, which need not exist, as by :func:`open_named`; also yields the last name."""
    above, name = os.path.split(os.path.normpath(path))
    if name in ("", "..", "."):
        above, name = os.path.split(os.path.realpath(path))
    directory = open_named(above or ".", THROUGH)
    try:
        yield directory, name
    finally:
        os.close(directory)


def resolved(path: str | os.PathLike[str]) -> Path:
    """The path without links, to be compared or shown. Never open it: use a descriptor."""
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError):
        # a link on the way leads to itself, or is replaced meanwhile
        return Path(path).absolute()


class KnownDirectory(NamedTuple):
    """The path, without links, and status of a directory that was opened, to notice a replacement."""

    path: Path
    status: os.stat_result

    @property
    def identity(self) -> tuple[int, int]:
        """Its device and inode."""
        return self.status.st_dev, self.status.st_ino


def known_directory(descriptor: int) -> KnownDirectory:
    """Describe an open directory; a ``FileNotFoundError`` if it was removed."""
    status = os.fstat(descriptor)
    if status.st_nlink == 0:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    # asked of the kernel: to follow the path again is to be led elsewhere
    if sys.platform == "darwin":
        path = os.fsdecode(fcntl.fcntl(descriptor, fcntl.F_GETPATH, bytes(_LONGEST_PATH)).rstrip(b"\0"))
    else:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
    return KnownDirectory(Path(path), status)


@contextmanager
def made_named(path: str | os.PathLike[str], mode: int = 0o777) -> Generator[int]:
    """Open a directory as by :func:`open_named`, after making it, with ``mode``, and its parents if missing."""
    above, missing = os.path.normpath(path), list[str]()
    while True:
        try:
            here = open_named(above, THROUGH if missing else DIRECTORY)
            break
        except FileNotFoundError:
            above, name = os.path.split(above)
            above = above or "."
            missing.append(name)
    try:
        while missing:
            name = missing.pop()
            try:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o777 if missing else mode, dir_fd=here)
                inner = os.open(name, THROUGH if missing else DIRECTORY, dir_fd=here)
            except OSError as error:
                raise OSError(error.errno, os.strerror(error.errno or 0), path) from None
            os.close(here)
            here = inner
        yield here
    finally:
        os.close(here)


def remove_named(path: str | os.PathLike[str]) -> None:
    """Remove the directory that a person names, as :func:`codeact_team.files.trees.remove` does."""
    with parent_of(path) as (above, name):
        trees.remove(name, above)


def move_named(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Move a file or directory to another path that a person names, as :func:`codeact_team.files.trees.move` does."""
    with parent_of(source) as (within, old), parent_of(target) as (to, new):
        trees.move(old, new, within=within, to=to)


def _reversed(path: str) -> list[str]:
    return [name for name in path.split("/") if name][::-1]


def _is_of_the_system(directory: int) -> bool:
    status = os.fstat(directory)
    if status.st_uid != 0 or status.st_mode & _OTHERS_WRITE:
        return False
    for path in _OF_THE_SYSTEM:
        with suppress(OSError):
            if os.path.samestat(os.stat(path), status):
                return True
    return False


def _refusal(path: str, name: str, left: list[str], target: str) -> str:
    link = path.rstrip("/").removesuffix("/".join(left[::-1])).rstrip("/")
    return f"{link or name} is a link to {target}, which code may have planted: name its target"


_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_OWN = re.compile(r"/dev/stdin|/(?:dev|proc/self)/fd/([0-9]{1,9})")


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Open a file that a person names, which must not be a directory, a pipe or a device.

    A descriptor of this process, such as ``/dev/fd/63`` of a shell's ``<(command)``, may be a pipe. A new file is for its
    owner only.

    Raises:
        OSError: As :func:`open_named`; or if it is not a regular file.
    """
    if (own := _OWN.fullmatch(os.fspath(path))) is not None:
        return os.dup(int(own[1] or 0))
    # a pipe would be waited for
    return _checked(open_named(path, flags | os.O_NONBLOCK, 0o600), path)


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """Read such a file of at most ``most`` bytes: a sparse file of a terabyte takes no room on a disk.

    Raises:
        OSError: As :func:`open_regular`; ``EFBIG`` if it has more.
    """
    with open(open_regular(path), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", path)
    return data


@contextmanager
def opened(directory: str | os.PathLike[str] | int) -> Generator[int]:
    """Open a directory by its path, as :func:`open_named` does, or by another descriptor of it."""
    descriptor = os.dup(directory) if isinstance(directory, int) else open_named(directory, DIRECTORY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def below(top: int, path: str) -> Generator[int]:
    """Open the directory at a path below the directory open as ``top``. Follows no link."""
    descriptor = os.dup(top)
    try:
        for part in parts_of(path):
            inner = os.open(part, DIRECTORY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def opened_file(top: int, path: str, flags: int = _READ) -> Generator[int]:
    """Open the regular file at a path below the directory open as ``top``. Follows no link, waits for no pipe."""
    above, _, name = path.rpartition("/")
    with below(top, above) as directory:
        descriptor = _checked(os.open(name, flags, dir_fd=directory), path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def parts_of(path: str) -> Sequence[str]:
    """The names in a path, which may be hostile; an ``OSError`` if it leads out of its directory."""
    parts = path.split("/") if path else []
    if {"", ".", ".."} & {*parts}:
        raise OSError(errno.EINVAL, "it is not a path below a directory")
    return parts


def _checked(descriptor: int, path: str | os.PathLike[str]) -> int:
    """Return the descriptor of a regular file. Close any other, and raise an ``OSError``."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, "it is not a regular file", path)


# as in <fcntl.h>: type, whence, start, length, process
_FLOCK = struct.Struct("hhqqi4x")


def lock(descriptor: int) -> bool:
    """Lock an open file, as long as it is open. Returns whether it was free."""
    try:
        if sys.platform == "linux":
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0))
        else:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_until_free(descriptor: int) -> None:
    """Wait until nobody has locked a file that is open here for reading, and lock it for reading. Blocks."""
    if sys.platform == "linux":
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLKW, _FLOCK.pack(fcntl.F_RDLCK, 0, 0, 0, 0))
    else:
        fcntl.flock(descriptor, fcntl.LOCK_SH)


def is_locked(descriptor: int) -> bool:
    """Whether somebody else has locked a file that is open here for reading. Does not lock it."""
    if sys.platform == "linux":
        wanted = _FLOCK.pack(fcntl.F_RDLCK, 0, 0, 0, 0)
        return _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, wanted))[0] != fcntl.F_UNLCK
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return False
