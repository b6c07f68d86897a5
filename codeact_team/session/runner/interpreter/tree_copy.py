"""Copies what is in a directory: by reference where the file system can, else without the holes of sparse files."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from fcntl import ioctl

_FICLONE = 0x40049409
_PIECE = 1 << 24


def copy_content(source: str, target: str, leave_out: str) -> None:
    """Make the directory ``target``, with a copy of what is in ``source``.

    Files, directories and links are copied, links as they are; nothing else is. Names of the same file are so in the copy, too:
    it takes no more room than what it is a copy of.

    Args:
        source: A directory.
        target: One that is not there.
        leave_out: How the paths of what is left out begin, below ``source``.

    Raises:
        OSError: If something cannot be read, or there is no room.
    """
    os.makedirs(target)
    left_out = os.path.join(source, leave_out)
    pending = [(source, target)]
    copies: dict[tuple[int, int], str] = {}
    while pending:
        here, there = pending.pop()
        with os.scandir(here) as entries:
            for entry in entries:
                if entry.path.startswith(left_out):
                    continue
                copy = os.path.join(there, entry.name)
                if entry.is_symlink():
                    os.symlink(os.readlink(entry.path), copy)
                elif entry.is_dir():
                    os.mkdir(copy)
                    pending.append((entry.path, copy))
                elif entry.is_file():
                    _copy_file(entry.path, copy, copies)


def _copy_file(source: str, target: str, copies: dict[tuple[int, int], str]) -> None:
    """Copy a file, unless it has been copied by another name; then add a name to that copy."""
    reader = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(reader)
        if status.st_nlink > 1:
            copied = copies.setdefault((status.st_dev, status.st_ino), target)
            if copied != target:
                os.link(copied, target)
                return
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _copy_bytes(reader, writer, status.st_size)
            # where it may not have them, it has what new files have
            with suppress(OSError):
                os.fchmod(writer, stat.S_IMODE(status.st_mode) & 0o777)
                os.utime(writer, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def _copy_bytes(reader: int, writer: int, size: int) -> None:
    try:
        ioctl(writer, _FICLONE, reader)
        return
    except OSError:
        os.ftruncate(writer, size)
    end = 0
    while (start := _next_data(reader, end)) is not None:
        end = os.lseek(reader, start, os.SEEK_HOLE)
        os.lseek(writer, start, os.SEEK_SET)
        while start < end and (sent := os.sendfile(writer, reader, start, min(_PIECE, end - start))):
            start += sent


def _next_data(fd: int, position: int) -> int | None:
    try:
        return os.lseek(fd, position, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        # nothing but a hole is left
        return None
