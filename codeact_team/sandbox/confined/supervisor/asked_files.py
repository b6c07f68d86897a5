"""What confined code asks about files, where it has no mounts of its own: modes, owners, times, attributes, and sockets' names.

Landlock restricts none of these. Each is done here, for what is in a directory that the code may write, and for nothing else. The
code can change paths, links and directories all the time. So a path is opened once. The descriptor stays with its file, whatever the
code changes later. If the file is in such a directory by then, everything is done to the descriptor.
"""

from __future__ import annotations

import errno
import os
import re
import struct
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress

from codeact_team.sandbox.confined.supervisor.listening import (
    Asked,
    open_beneath,
    open_place,
    read_memory,
    read_text,
    write_memory,
)
from codeact_team.sandbox.system.kernel import checked, libc

AT_FDCWD, _AT_SYMLINK_NOFOLLOW, _AT_EMPTY_PATH = -100, 0x100, 0x1000
_LONGEST_NAME, _MOST_OF_AN_ATTRIBUTE = 256, 1 << 16
_OF_USERS = b"user."
_OF_LINKS = {"lgetxattr", "llistxattr", "lremovexattr", "lsetxattr"}
_TIMESPECS, _TIMEVALS, _UTIMBUF = struct.Struct("=4q"), struct.Struct("=4q"), struct.Struct("=2q")
_TGID = re.compile(rb"^Tgid:\t(\d+)$", re.M)
_FLAGS = re.compile(rb"^flags:\t0*([0-7]+)$", re.M)


def refused(number: int = errno.EPERM) -> OSError:
    """The error of a call that is refused."""
    return OSError(number, os.strerror(number))


def as_int(register: int) -> int:
    """A register as the kernel reads a descriptor, a mode or a number of a process."""
    return struct.unpack("=i", struct.pack("=I", register & 0xFFFFFFFF))[0]


def flags_of(asked: Asked, fd: int) -> int:
    """The flags with which the caller has a descriptor open. Raises an ``OSError`` if it has none."""
    return int(entry_of(asked, f"fdinfo/{fd}", _FLAGS, errno.EBADF), 8)


def entry_of(asked: Asked, name: str, pattern: re.Pattern[bytes], missing: int = errno.ESRCH) -> bytes:
    """What the first group of a pattern finds in a file of the caller in ``/proc``. Raises an ``OSError``, ``missing`` without it."""
    with suppress(FileNotFoundError), open(f"/proc/{asked.thread}/{name}", "rb") as file:
        if found := pattern.search(file.read()):
            return found[1]
    raise refused(missing)


def process_of(asked: Asked) -> int:
    """The process of the calling thread."""
    return int(entry_of(asked, "status", _TGID))


class WritableDirectories:
    """The directories in which code may change what belongs to files.

    Args:
        roots: Descriptors of them, which stay the caller's.

    Attributes:
        roots: Copies of these descriptors.
    """

    def __init__(self, roots: Sequence[int]) -> None:
        self.roots: Sequence[int] = [*map(os.dup, roots)]

    def close(self) -> None:
        """Close what is held open."""
        for root in self.roots:
            os.close(root)

    @contextmanager
    def named_by(self, asked: Asked, directory: int, path: bytes, *, follow: bool = True) -> Generator[bytes]:
        """What a path of the caller leads to, as a path of this process. Raises an ``OSError`` if it is outside."""
        if not path:
            raise refused(errno.ENOENT)
        if path.startswith(b"/"):
            place = open_place(AT_FDCWD, path, follow=follow)
        else:
            base = open_entry(asked, "cwd" if directory == AT_FDCWD else f"fd/{directory}")
            try:
                place = open_place(base, path, follow=follow)
            finally:
                os.close(base)
        with self._inside(asked, place) as found:
            yield found

    @contextmanager
    def opened_as(self, asked: Asked, fd: int) -> Generator[bytes]:
        """What the caller has open as a descriptor, as a path of this process. Raises an ``OSError`` if it is outside."""
        # a file that was removed is in no directory
        with self._inside(asked, open_entry(asked, "cwd" if fd == AT_FDCWD else f"fd/{fd}")) as found:
            yield found

    @contextmanager
    def _inside(self, asked: Asked, place: int) -> Generator[bytes]:
        """The path of a descriptor, which is closed. Raises an ``OSError`` if it is not inside, or the call does not wait any more."""
        try:
            path = f"/proc/self/fd/{place}".encode()
            if not self._contain(place, os.readlink(path)):
                raise refused()
            # its thread has waited until now, so what was read and opened was its own
            asked.require_waiting()
            yield path
        finally:
            os.close(place)

    def _contain(self, place: int, where: bytes) -> bool:
        for root in self.roots:
            above = os.readlink(f"/proc/self/fd/{root}".encode())
            if where == above or where.startswith(above + b"/"):
                with suppress(OSError):
                    beneath = open_beneath(root, os.path.relpath(where, above))
                    try:
                        return os.path.sameopenfile(beneath, place)
                    finally:
                        os.close(beneath)
        return False


def open_entry(asked: Asked, name: str) -> int:
    """Open, only to name it, an entry of the caller in ``/proc``. Raises an ``OSError`` if there is none."""
    try:
        return os.open(f"/proc/{asked.thread}/{name}", os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        raise refused(errno.EBADF) from None


class FileCalls:
    """Does the calls of :data:`~.calls.OF_FILES` in these directories."""

    def __init__(self, directories: WritableDirectories) -> None:
        self._directories = directories

    def do(self, name: str, asked: Asked) -> int:
        """Do a call. Returns its result. Raises an ``OSError``."""
        first, second, third, fourth, fifth, _ = asked.arguments
        at = (as_int(first), second)
        here = (AT_FDCWD, first)
        match name:
            case "chmod" | "fchmodat" | "fchmodat2":
                directory, path, mode, flags = (*here, second, 0) if name == "chmod" else (*at, third, fourth)
                with self._place(asked, directory, path, flags if name == "fchmodat2" else 0) as found:
                    os.chmod(found, mode & 0o7777)
            case "fchmod":
                with self._directories.opened_as(asked, as_int(first)) as found:
                    os.chmod(found, second & 0o7777)
            case "chown" | "lchown" | "fchownat":
                directory, path, user, group, flags = (
                    (*at, third, fourth, fifth) if name == "fchownat" else (*here, second, third, 0)
                )
                with self._place(
                    asked, directory, path, _AT_SYMLINK_NOFOLLOW if name == "lchown" else flags
                ) as found:
                    os.chown(found, as_int(user), as_int(group))
            case "fchown":
                with self._directories.opened_as(asked, as_int(first)) as found:
                    os.chown(found, as_int(second), as_int(third))
            case "utime" | "utimes" | "futimesat" | "utimensat":
                return self._set_times(name, asked)
            case "getxattr" | "lgetxattr" | "listxattr" | "llistxattr":
                try:
                    return self._attributes(name, asked)
                except PermissionError:
                    # as a file system without attributes says: programs that list directories look for them, too
                    raise refused(errno.EOPNOTSUPP) from None
            case _:
                return self._attributes(name, asked)
        return 0

    @contextmanager
    def _place(self, asked: Asked, directory: int, path: int, flags: int) -> Generator[bytes]:
        if as_int(flags) & ~(_AT_SYMLINK_NOFOLLOW | _AT_EMPTY_PATH):
            raise refused(errno.EINVAL)
        name = read_text(asked, path)
        with (
            self._directories.named_by(asked, directory, name, follow=not flags & _AT_SYMLINK_NOFOLLOW)
            if name or not flags & _AT_EMPTY_PATH
            else self._directories.opened_as(asked, directory)
        ) as found:
            yield found

    def _set_times(self, name: str, asked: Asked) -> int:
        first, second, third, fourth, *_ = asked.arguments
        directory, path, times, flags = (AT_FDCWD, first, second, 0)
        if name in ("futimesat", "utimensat"):
            directory, path, times = as_int(first), second, third
        if name == "utimensat":
            flags = as_int(fourth)
        given: bytes | None = None
        if times:
            size = _UTIMBUF.size if name == "utime" else _TIMESPECS.size
            data = read_memory(asked, times, size)
            if len(data) < size:
                raise refused(errno.EFAULT)
            given = _as_timespecs(name, data)
        is_opened = not path and directory != AT_FDCWD
        with (
            self._directories.opened_as(asked, directory)
            if is_opened
            else self._place(asked, directory, path, flags)
        ) as found:
            checked(libc.utimensat(AT_FDCWD, found, given, 0))
        return 0

    def _attributes(self, name: str, asked: Asked) -> int:
        first, second, third, fourth, fifth, _ = asked.arguments
        flags = _AT_SYMLINK_NOFOLLOW if name in _OF_LINKS else 0
        with (
            self._directories.opened_as(asked, as_int(first))
            if name.startswith("f")
            else self._place(asked, AT_FDCWD, first, flags)
        ) as found:
            if name in ("listxattr", "llistxattr"):
                names = [one for one in map(os.fsencode, os.listxattr(found)) if one.startswith(_OF_USERS)]
                return _give(asked, second, third, b"".join(one + b"\0" for one in names))
            attribute = read_text(asked, second, _LONGEST_NAME, too_long=errno.ERANGE)
            if not attribute.startswith(_OF_USERS):
                raise refused(errno.ENODATA if "get" in name else errno.EPERM)
            if "get" in name:
                return _give(asked, third, fourth, os.getxattr(found, attribute))
            if "remove" in name:
                os.removexattr(found, attribute)
                return 0
            if fourth > _MOST_OF_AN_ATTRIBUTE:
                raise refused(errno.E2BIG)
            value = read_memory(asked, third, fourth) if fourth else b""
            if len(value) < fourth:
                raise refused(errno.EFAULT)
            os.setxattr(found, attribute, value, as_int(fifth))
        return 0


def _as_timespecs(name: str, data: bytes) -> bytes:
    """The times of a call in the form of ``utimensat``, which tells of nanoseconds."""
    if name == "utimensat":
        return data
    if name == "utime":
        access, change = _UTIMBUF.unpack(data)
        return _TIMESPECS.pack(access, 0, change, 0)
    access, of_access, change, of_change = _TIMEVALS.unpack(data)
    if not (0 <= of_access < 1_000_000 and 0 <= of_change < 1_000_000):
        raise refused(errno.EINVAL)
    return _TIMESPECS.pack(access, of_access * 1000, change, of_change * 1000)


def _give(asked: Asked, address: int, size: int, data: bytes) -> int:
    """Write the result of a call to the memory of the caller. Returns its size."""
    if size:
        if len(data) > size:
            raise refused(errno.ERANGE)
        if data:
            write_memory(asked, address, data)
    return len(data)
