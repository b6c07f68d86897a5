"""Copies what is in a directory: by reference where the file system can, so that nothing is written twice."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from fcntl import ioctl

_FICLONE = 0x40049409
_PIECE = 1 << 24


def copy_content(source: str, target: str, leave_out: str) -> None:
    """Make the directory ``target``, with a copy of what is in ``source``.

    Files, directories and links are copied, links as they are; nothing else is.

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
                    _copy_file(entry.path, copy)


def _copy_file(source: str, target: str) -> None:
    reader = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(reader)
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _copy_bytes(reader, writer)
            # where it may not have them, it has what new files have
            with suppress(OSError):
                os.fchmod(writer, stat.S_IMODE(status.st_mode) & 0o777)
                os.utime(writer, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def _copy_bytes(reader: int, writer: int) -> None:
    try:
        ioctl(writer, _FICLONE, reader)
    except OSError:
        while os.sendfile(writer, reader, None, _PIECE):
            pass
