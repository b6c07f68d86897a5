"""Opens, or makes, what a path that a person names leads to, without the links that somebody else may have planted on the way.

Code that ran in a workspace of this machine leaves links there that lead out of it, and looks like the person: its files may
have the same owner. So only links are followed that nobody but the system can have made, such as ``/home`` or ``/var/run``.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from codeact_team.sandbox.system import trees
from codeact_team.sandbox.system.trees import DIRECTORY

_OF_THE_SYSTEM = ("/", "/home", "/usr", "/var")
"""Directories whose links are followed, if they belong to root and nobody else may write to them."""
_MOST_LINKS = 40
"""As many as the kernel follows."""
_OTHERS_WRITE = 0o022
_LONGEST_PATH = 1024
"""Bytes that macOS takes for one."""
THROUGH = DIRECTORY | getattr(os, "O_PATH", 0)
"""How a directory on the way is opened: many may be passed through, but not listed."""


def open_named(path: str | os.PathLike[str], flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
    """Open what a person names.

    Args:
        path: Absolute, or from the current directory.
        flags: As of ``os.open``.
        mode: The permissions of a file that is made.

    Returns:
        A descriptor.

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
                if (target := _link(name, here)) is None:
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
    """The directory, open, in which something is or is to be that a person names; and the name that it has there.

    Raises:
        OSError: As :func:`open_named`.
    """
    above, name = os.path.split(os.path.normpath(path))
    if name in ("", "..", "."):
        above, name = os.path.split(os.path.realpath(path))
    directory = open_named(above or ".", THROUGH)
    try:
        yield directory, name
    finally:
        os.close(directory)


def resolved(path: str | os.PathLike[str]) -> Path:
    """Where something is said to be, to be compared or told. What is done there goes by a descriptor."""
    try:
        return Path(path).resolve()
    except (OSError, RuntimeError):
        # a link on the way leads to itself, or is replaced meanwhile
        return Path(path).absolute()


class KnownDirectory(NamedTuple):
    """A directory that was opened once, and can be told from what somebody puts in its place later.

    Attributes:
        path: Where it was then, without links.
        status: What it was then.
    """

    path: Path
    status: os.stat_result

    @property
    def identity(self) -> tuple[int, int]:
        """Its device and inode."""
        return self.status.st_dev, self.status.st_ino


def known_directory(descriptor: int) -> KnownDirectory:
    """What can be known of a directory that is open.

    Raises:
        FileNotFoundError: If it was removed.
    """
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
    """The directory that a person names, open; where it is missing it is made, and so are those above it.

    Args:
        path: As of :func:`open_named`.
        mode: The permissions that it gets if it is made.

    Raises:
        OSError: As :func:`open_named`; or if it cannot be made.
    """
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
    """Remove the directory that a person names, with all that is in it, as :func:`codeact_team.sandbox.system.trees.remove` does.

    Raises:
        OSError: As :func:`open_named`; or if something is left.
    """
    with parent_of(path) as (above, name):
        trees.remove(name, above)


def _reversed(path: str) -> list[str]:
    return [name for name in path.split("/") if name][::-1]


def _link(name: str, directory: int) -> str | None:
    with suppress(OSError):
        return os.readlink(name, dir_fd=directory)
    return None


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
    return f"{link or name} is a link to {target}, which code may have planted: name what it leads to"
