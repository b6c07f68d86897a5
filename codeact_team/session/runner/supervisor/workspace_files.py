"""Serves the host's requests to write, read and list files of the workspace by paths below a directory.

Paths are bytes, so that file names do not depend on the locale.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from contextlib import suppress

from codeact_team.sandbox.system.framing import ProtocolError, frame
from codeact_team.session.protocol import (
    FORKS_PREFIX,
    FROM_SUPERVISOR,
    KIB,
    MAX_FILE_BYTES,
    MAX_LISTED_FILES,
    MIB,
    Kind,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_FORKS_PREFIX = FORKS_PREFIX.encode()
_CHUNK = 1 * MIB
_MAX_LIST = FROM_SUPERVISOR[Kind.DONE] - KIB
"""The largest listing, as JSON, in bytes."""
_MAX_SIZE_DIGITS = 24
"""The longest size, with the characters around a name and a size."""
_MAX_SEEN = 10 * MAX_LISTED_FILES
"""The most entries of any kind that a listing reads."""
REQUESTS = (Kind.PUT, Kind.GET, Kind.LIST)
"""The requests that :func:`answers` handles."""


def answers(kind: int, payload: bytes, home: bytes) -> Iterator[bytes]:
    """The frames that answer a request for files below ``home``; below the current directory if that is empty."""
    try:
        if kind == Kind.PUT:
            head = payload.find(b"\n") + 1
            put(home, _path(payload[:head]), memoryview(payload)[head:])
            yield frame(Kind.DONE)
        elif kind == Kind.GET:
            for piece in get(home, _path(payload)):
                yield frame(Kind.FILE, piece)
            yield frame(Kind.DONE)
        else:
            yield frame(Kind.DONE, json.dumps({"files": list_all(home)}).encode())
    except OSError as error:
        failure = {"error": type(error).__name__, "message": error.strerror or str(error)}
        yield frame(Kind.FAILED, json.dumps(failure).encode())


def _path(request: bytes) -> str:
    try:
        path = json.loads(request)["path"]
    except (ValueError, LookupError, TypeError) as error:
        raise ProtocolError("a request without a path") from error
    if not isinstance(path, str):
        raise ProtocolError("a path that is not text")
    return path


def put(home: bytes, path: str, data: memoryview) -> None:
    """Write a file. Missing directories are created; anything in its place but a directory is replaced."""
    target = _inside(home, path)
    directory = os.path.dirname(target)
    if directory:
        os.makedirs(directory, exist_ok=True)
    temporary = os.path.join(directory, b".put-" + os.urandom(8).hex().encode())
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(fd, "wb") as file:
            file.write(data)
        os.replace(temporary, target)
    except OSError:
        os.unlink(temporary)
        raise


def get(home: bytes, path: str) -> Iterator[bytes]:
    """Read a regular file, unless it is too large, piece by piece."""
    # opening a pipe without a writer would block
    fd = os.open(_inside(home, path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        _check_size(status.st_size)
        total = 0
        while piece := os.read(fd, _CHUNK):
            # more may be written while it is read
            total += len(piece)
            _check_size(total)
            yield piece
    finally:
        os.close(fd)


def list_all(home: bytes) -> list[tuple[str, int]]:
    """The regular files with their sizes in bytes, in a stable order, as many as there is room for. Follows no links."""
    found: list[tuple[str, int]] = []
    room, unseen = _MAX_LIST, _MAX_SEEN
    pending = [b""]
    while pending:
        entries = _entries(home, pending.pop(), unseen)
        unseen -= len(entries)
        below: list[bytes] = []
        for path, status in entries:
            if stat.S_ISDIR(status.st_mode):
                if not path.startswith(_FORKS_PREFIX):
                    below.append(path)
            elif stat.S_ISREG(status.st_mode):
                name = path.decode(errors="replace")
                room -= len(json.dumps(name)) + _MAX_SIZE_DIGITS
                if len(found) == MAX_LISTED_FILES or room < 0:
                    return found
                found.append((name, status.st_size))
        if unseen <= 0:
            return found
        pending += reversed(below)
    return found


def _entries(home: bytes, directory: bytes, limit: int) -> list[tuple[bytes, os.stat_result]]:
    """At most ``limit`` entries of a directory, sorted by name; none if it cannot be read."""
    found: list[tuple[bytes, os.stat_result]] = []
    try:
        with os.scandir(os.path.join(home, directory) or b".") as entries:
            for _, entry in zip(range(limit), entries):  # noqa: B905 - there may be more
                # it may have been removed meanwhile
                with suppress(FileNotFoundError):
                    found.append((os.path.join(directory, entry.name), entry.stat(follow_symlinks=False)))
    except OSError:
        return []
    return sorted(found, key=lambda one: one[0])


def _check_size(size: int) -> None:
    if size > MAX_FILE_BYTES:
        raise OSError(errno.EFBIG, f"it has {size} bytes, and at most {MAX_FILE_BYTES} can be read")


def _inside(home: bytes, path: str) -> bytes:
    parts = path.split("/")
    if path.startswith("/") or ".." in parts or "\0" in path or not set(parts) - {"", "."}:
        raise OSError(errno.EINVAL, f"{path!r} is not a path below the workspace")
    try:
        return os.path.join(home, path.encode(errors="surrogateescape"))
    except UnicodeError as error:
        raise OSError(errno.EINVAL, f"{path!r} is not a path") from error
