"""A file of JSON objects, one a line, that only grows. What is written survives the end of the process at any moment.

docs/reference/journal.md describes the end of a line. Logs may be hostile: lines and files that are longer than any of ours are damaged.
"""

from __future__ import annotations

import os
import re
import zlib
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Self, cast

from pydantic import JsonValue, ValidationError

from codeact_team.errors import JournalError
from codeact_team.files.opening import lock, open_regular
from codeact_team.journal.blobs import Room, as_json, parse, reading
from codeact_team.journal.seal import Chain

Entry = dict[str, Any]
_MARK = b',"crc":"'
_TAIL = len(_MARK) + 8 + len(b'"}')
_PIECE = 64 * 1024
_LONGEST = 16 << 20
"""Bytes of a line."""
_LARGEST = 1 << 30
"""Bytes of a log; a sparse file may have any number."""


class Log:
    """A log open for append, by one process at a time.

    A line that a killed process has torn off is dropped with the first line that is written.

    Args:
        path: The file; made if it does not exist.
        room: Counts what is written.
        sync: Whether each line is on the disk before :meth:`append` returns, and so survives a power cut.
        chain: Authenticates the lines, if anything does; if the log has lines, it has to be at the last one.

    Raises:
        JournalError: If another process has it open, its last line is damaged, or it cannot be opened.
    """

    def __init__(
        self, path: Path, room: Room | None = None, *, sync: bool = False, chain: Chain | None = None
    ) -> None:
        self._path = path
        self._room = room
        self._sync = sync
        self.chain = chain
        try:
            self._descriptor = open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        except OSError as error:
            raise JournalError(f"the journal {path} cannot be opened: {error.strerror}") from error
        try:
            if not lock(self._descriptor):
                raise JournalError(f"another process is writing the journal {path}: wait until it has ended")
            self._size = self._size_without_torn_end()
        except BaseException:
            os.close(self._descriptor)
            raise

    def append(self, entry: Mapping[str, JsonValue]) -> int:
        """Write a line, and return where it begins.

        Raises:
            JournalError: If it cannot be written, such as on a full disk; nothing of it is left then.
        """
        line = encode(entry, self.chain)
        try:
            if self._size + len(line) > _LARGEST:
                raise OSError(None, f"it has {_LARGEST >> 30} GiB, and may not have more")
            if os.fstat(self._descriptor).st_size > self._size:
                os.ftruncate(self._descriptor, self._size)
            written = os.write(self._descriptor, line)
            if written < len(line):
                os.ftruncate(self._descriptor, self._size)
                raise OSError(None, "no space left on the device")
            if self._sync:
                os.fdatasync(self._descriptor)
        except OSError as error:
            raise JournalError(
                f"the journal {self._path} cannot be written: {error.strerror}. The run stops here, and can be resumed"
            ) from error
        if self.chain is not None:
            self.chain.accept(_body(line))
        began, self._size = self._size, self._size + len(line)
        if self._room is not None:
            self._room.use(len(line))
        return began

    def close(self) -> None:
        """Let others open it. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _size_without_torn_end(self) -> int:
        try:
            line, size = _last_line(self._descriptor)
            is_damaged = bool(line) and decode(line) is None
        except ValueError:
            is_damaged, size = True, 0
        if is_damaged:
            raise JournalError(
                f"the journal {self._path} is damaged at its end: it can be shown, but not resumed"
            )
        return size


def encode(entry: Mapping[str, JsonValue], chain: Chain | None = None) -> bytes:
    """A line with its code, its check sum and its end."""
    body = as_json({**entry})[:-1]
    if chain is not None:
        body = chain.signed(body)
    return b'%b%b%08x"}\n' % (body, _MARK, zlib.crc32(body))


def decode(line: bytes) -> Entry | None:
    """The entry of a line; ``None`` if the line is not whole."""
    body, tail = _body(line), line[-_TAIL - 1 :]
    if tail != b'%b%08x"}\n' % (_MARK, zlib.crc32(body)):
        return None
    try:
        entry = parse(body + b"}")
    except ValueError:
        return None
    return cast(Entry, entry) if isinstance(entry, dict) else None


def _body(line: bytes) -> bytes:
    """Return the part of a line that its checksum covers."""
    return line[: -_TAIL - 1]


def _last_line(descriptor: int, end: int | None = None) -> tuple[bytes, int]:
    """Return the last whole line before ``end``, by default the end of the file, and where it ends; empty without one.

    Raises:
        ValueError: If it is longer than any line.
    """
    whole = end = os.lseek(descriptor, 0, os.SEEK_END) if end is None else end
    pieces: deque[bytes] = deque()
    breaks = 0
    # back to the end of the line before
    while whole > 0 and breaks < 2:
        if end - whole > 2 * _LONGEST:
            raise ValueError("no line is so long")
        start = max(0, whole - _PIECE)
        pieces.appendleft(os.pread(descriptor, whole - start, start))
        breaks += pieces[0].count(b"\n")
        whole = start
    kept, newline, torn = b"".join(pieces).rpartition(b"\n")
    return kept.rpartition(b"\n")[2] + newline, end - len(torn)


def read_backwards(path: Path) -> Generator[Entry]:
    """The whole entries of a log from the last to the first; raises :class:`JournalError` where it is damaged."""
    with reading(f"the journal {path}"), open(open_regular(path), "rb") as file:
        try:
            line, end = _last_line(file.fileno())
            while line:
                if (entry := decode(line)) is None:
                    raise JournalError(f"the journal {path} is damaged at its end")
                yield entry
                line, end = _last_line(file.fileno(), end - len(line))
        except ValueError as error:
            raise JournalError(f"the journal {path} is damaged at its end: {error}") from error


class LogReader:
    """Reads a log from its beginning, and later what was written since. A context manager.

    Args:
        path: The log.
        chain: Authenticates its lines, if anything does.

    Attributes:
        offset: Where the last entry that was read begins.
        chain: The same after that entry; ``None`` where not all entries were authentic.

    Raises:
        JournalError: If it cannot be opened, or is larger than any of ours.
    """

    def __init__(self, path: Path, chain: Chain | None = None) -> None:
        self._path = path
        self._number = 0
        self.offset: int = 0
        self._end = 0
        self.chain = chain
        with self._reading():
            self._file = open(open_regular(path), "rb")
        if os.fstat(self._file.fileno()).st_size > _LARGEST:
            self._file.close()
            raise JournalError(
                f"the journal {path} was not written by codeact-team: it has more than {_LARGEST >> 30} GiB"
            )

    def _reading(self) -> AbstractContextManager[None]:
        return reading(f"the journal {self._path}")

    def go_to_last(self, key: str) -> None:
        """Continue at the last entry that has a key, or at the first. Entries before it are not decoded."""
        begins = re.compile(rb'\{"at":[-+.e\d]+,"%b":' % key.encode())
        number = end = 0
        found = number, end
        with self._reading():
            self._file.seek(0)
            while line := self._file.readline(_LONGEST):
                if begins.match(line) and decode(line) is not None:
                    found = number, end
                number, end = number + 1, end + len(line)
            self._number, self._end = found
            self._file.seek(self._end)

    def new(self) -> Iterator[Entry]:
        """The entries that were not read yet, without a torn one at the end.

        Raises:
            JournalError: Where it is damaged, after all entries before that.
        """
        with self._reading():
            while (line := self._file.readline(_LONGEST)).endswith(b"\n") or len(line) == _LONGEST:
                self._number += 1
                if (entry := decode(line)) is None:
                    raise JournalError(
                        f"{self._path}:{self._number}: the journal is damaged here; everything before is intact"
                    )
                if self.chain is not None and not self.chain.accept(_body(line)):
                    self.chain = None
                self.offset, self._end = self._end, self._end + len(line)
                yield entry
            self._file.seek(-len(line), os.SEEK_CUR)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def entry_at(path: Path, offset: int) -> Entry:
    """The entry that begins at a place in a log; raises :class:`JournalError` if none does."""
    with reading(f"the journal {path}"), open(open_regular(path), "rb") as file:
        file.seek(offset)
        entry = decode(file.readline(_LONGEST))
    if entry is None:
        raise JournalError(f"the journal {path} was changed while it was read")
    return entry


@contextmanager
def understood(path: Path) -> Generator[None]:
    """Within it, an entry is interpreted; raises :class:`JournalError` if this version does not write it so."""
    try:
        yield
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise JournalError(
            f"{path} has an entry that this version of codeact-team does not know: {_in_words(error)}"
        ) from error


def _in_words(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return repr(error)
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())


def read_log(path: Path) -> Iterator[Entry]:
    """The entries of a log, as :meth:`LogReader.new` has them, also while a process writes it."""
    with LogReader(path) as log:
        yield from log.new()
