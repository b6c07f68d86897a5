"""The directories of forks: copies the files of a session for a fork, and puts the files of a promoted fork in their place."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from codeact_team.files import trees

_PIECE = 1 << 24


def copy_content(source: str, target: str, leave_out: str) -> None:
    """Create the directory ``target`` with a copy of the content of ``source``.

    Files are copied by reference if the file system can do that, otherwise without the holes of sparse files. Several
    names of one file stay names of one copy, so the copy takes no more room. Links are copied as links; only files,
    directories and links are copied. Raises an ``OSError`` if something cannot be read, or there is no room.
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
    """Copy a file, or add a name to its copy if it was copied by another name."""
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
            # if that is refused, the copy keeps what a new file has
            with suppress(OSError):
                os.fchmod(writer, stat.S_IMODE(status.st_mode) & 0o777)
                os.utime(writer, ns=(status.st_atime_ns, status.st_mtime_ns))
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def _copy_bytes(reader: int, writer: int, size: int) -> None:
    if trees.clone(reader, writer):
        return
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
        # only a hole is left
        return None


def replace_content(source: str, target: str, leave_out: str) -> None:
    """Move the content of ``source`` to ``target`` and remove everything else there, except what is left out.

    A file that has not been written since it was copied stays the same file, so it does not count as changed. Raises an
    ``OSError`` if something cannot be moved or removed; a part of the work is done then.
    """
    left_out = os.path.join(target, leave_out)
    pending = [(source, target)]
    while pending:
        here, there = pending.pop()
        new, old = _entries(here), _entries(there)
        for name, status in old.items():
            goal = os.path.join(there, name)
            is_directory = stat.S_ISDIR(status.st_mode)
            if goal.startswith(left_out):
                new.pop(name, None)
            elif name in new and is_directory and stat.S_ISDIR(new[name].st_mode):
                pending.append((os.path.join(here, name), goal))
                del new[name]
            elif name in new and _is_unchanged(status, new[name]):
                del new[name]
            elif left_out.startswith(goal + os.sep):
                # it may contain what is left out
                new.pop(name, None)
            elif is_directory:
                trees.remove(goal)
            else:
                os.unlink(goal)
        for name in new:
            os.rename(os.path.join(here, name), os.path.join(there, name))


def _entries(directory: str) -> dict[str, os.stat_result]:
    with os.scandir(directory) as entries:
        return {entry.name: entry.stat(follow_symlinks=False) for entry in entries}


def _is_unchanged(old: os.stat_result, new: os.stat_result) -> bool:
    return (
        stat.S_ISREG(old.st_mode)
        and (old.st_mode, old.st_size, old.st_mtime_ns) == (new.st_mode, new.st_size, new.st_mtime_ns)
        # otherwise the fork has given it another name
        and old.st_nlink >= new.st_nlink
    )  # fmt: skip
