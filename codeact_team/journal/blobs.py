"""Contents of a journal that are kept beside its lines, the references that stand for them, and the room that a run may take.

docs/reference/journal.md lists the references.
"""

from __future__ import annotations

import base64
import json
import os
import stat
import sys
import weakref
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from hashlib import file_digest, sha256
from pathlib import Path
from threading import Lock

from pydantic import JsonValue
from pydantic_core import PydanticSerializationError, to_json

from codeact_team.errors import JournalError
from codeact_team.files.atomic import size_without_holes, write_whole
from codeact_team.files.opening import below, made_named, open_named, open_regular, opened, read_regular
from codeact_team.files.trees import DIRECTORY, files_below
from codeact_team.text.nesting import parse_json

MAX_PARTS = 1 << 20
"""Values and keys; each takes about a hundred bytes of memory, however short it is."""


def parse(data: bytes) -> JsonValue:
    """The value of JSON; raises ``ValueError`` if it is none, is nested too deeply, or has too many parts."""
    # a text is one part, whatever is in it
    if not data.startswith(b'"') and _parts_of(data) > MAX_PARTS:
        raise ValueError(f"it has more than {MAX_PARTS:,} parts")
    return parse_json(data)


def _parts_of(data: bytes) -> int:
    """An upper bound of the number of values and keys in JSON."""
    return sum(map(data.count, (b",", b"[", b"{", b":"))) + 1


@contextmanager
def reading(what: object) -> Generator[None]:
    """Within it, something is read; raises :class:`JournalError`, with its name, where that fails."""
    try:
        yield
    except OSError as error:
        raise JournalError(f"{what} cannot be read: {error.strerror}") from error


_MIB = 1 << 20
DEFAULT_MIB = 1024
"""MiB that are kept of a run by default."""
_FOR_FILES = 3 / 4
"""The share that files and artifacts may use up: the rest is for what the run needs to go on."""


class Room:
    """Counts the bytes that are written of a run. Threads may share one.

    Args:
        mib: How many MiB may be written; ``None`` for any number.
        directory: The directory of the run, whose files count. Reading it blocks.
    """

    def __init__(self, mib: int | None, directory: Path) -> None:
        self.mib = mib
        self._most = float("inf") if mib is None else mib * _MIB
        self._used = 0 if mib is None else _used_by(directory)
        self._lock = Lock()

    @property
    def is_used_up(self) -> bool:
        """Whether nothing more may be written."""
        return self._used >= self._most

    def use(self, size: int) -> None:
        """Count bytes that are written."""
        with self._lock:
            self._used += size

    def has_for_file(self, size: int) -> bool:
        """Whether so many bytes of a file or an artifact may be written."""
        return self._used + size <= self._most * _FOR_FILES


def _used_by(directory: Path) -> int:
    """Return the bytes of the disk that a directory takes; 0 if it does not exist. Blocks."""
    used = 0
    try:
        with opened(directory) as top:
            for _, _, status in files_below(top):
                used += status.st_blocks * 512
    except FileNotFoundError:
        return used
    except OSError as error:
        raise JournalError(f"the contents of {directory} cannot be counted: {error.strerror}") from error
    return used


# docs/reference/journal.md describes these references
_REFERENCE = "$blob"
_IN_BASE64: Mapping[str, tuple[Callable[[bytes], bytes], bytes]] = {
    "$bytes": (base64.b64encode, b"+/"),
    # as pydantic writes it
    "$url-bytes": (base64.urlsafe_b64encode, b"-_"),
}
_PARTS = (str, list, dict)
_LARGE = 1024
"""Bytes of JSON above which a value becomes a blob."""
_LIGHT = 64 * 1024
"""Characters, keys and items of a value that takes no time worth a thread."""
_MANY = 1000
_DIGEST = 64
LARGEST = 64 << 20
"""Bytes of a blob that is read as a whole, and by default of a value, in which a blob counts as often as it occurs."""


class TooMuchError(JournalError):
    """A run names more than can be read of it."""


class Blobs:
    """The blobs of a run. Reading and writing blocks, and raises :class:`JournalError` where it fails.

    Args:
        directory: Their directory; made when the first is kept.
        room: Limits how much is kept; ``None`` for any size.
        sync: Whether each is on the disk before :meth:`keep` returns.
        is_hidden: Whether bytes hold a credential.
        largest: Bytes of a value that is unpacked.
        most: Bytes that are read and unpacked beyond the size of all blobs, as one can be named repeatedly; ``None`` for any.
    """

    def __init__(
        self,
        directory: Path,
        room: Room | None = None,
        *,
        sync: bool = False,
        is_hidden: Callable[[bytes], bool] = lambda data: False,
        largest: int = LARGEST,
        most: int | None = None,
    ) -> None:
        self._largest = largest
        self._left = most
        self._counts_disk = most is not None
        self._directory = directory
        self._room = room or Room(None, directory)
        self._sync = sync
        self._is_hidden = is_hidden
        self._known: set[str] = set()
        self._made: set[str] = set()
        """The names of the directories in it that are there, and with ``sync`` on the disk."""
        self._top: int | None = None
        """The directory, open once a blob is kept: to open it by its path takes as long as to write a small one."""

    def keep(self, data: bytes) -> str:
        """Keep bytes, and return their digest."""
        digest = sha256(data).hexdigest()
        self._add(digest, data)
        return digest

    def keep_if_room(self, data: bytes) -> str | None:
        """Keep bytes of a file or an artifact; ``None`` if no room is left for them, and they are not kept already."""
        digest = sha256(data).hexdigest()
        return digest if self._add(digest, data, of_file=True) else None

    def read(self, digest: str) -> bytes:
        """The bytes with a digest."""
        path = self._path(digest)
        # nothing more is read when it is used up
        self._spend(0)
        with reading(path):
            data = read_regular(path, LARGEST)
        self._spend(len(data))
        if sha256(data).hexdigest() != digest:
            raise _changed(path)
        return data

    def file(self, digest: str, size: int) -> Path:
        """The file that has ``size`` bytes with a digest."""
        path = self._path(digest)
        with reading(path), open(open_regular(path), "rb") as file:
            # a sparse file of a terabyte takes no room on a disk
            is_whole = (
                os.fstat(file.fileno()).st_size == size and file_digest(file, "sha256").hexdigest() == digest
            )
        if not is_whole:
            raise _changed(path)
        return path

    def pack(self, value: JsonValue) -> JsonValue:
        """A value as a line has it, with references to blobs for what is large in it, or as a whole."""
        # a character takes six bytes at most
        if not isinstance(value, _PARTS) or (isinstance(value, str) and len(value) < _LARGE // 6):
            return value
        return value if _stays(as_json(value)) else self._pack(value)

    def pack_fields(self, values: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """Values by the names of fields, each packed."""
        fields = dict(values)
        return fields if _stays(as_json(fields)) else {name: self.pack(one) for name, one in fields.items()}

    def unpack(self, value: JsonValue, *, with_bytes: bool = True) -> JsonValue:
        """The value that was packed.

        Args:
            value: The value as a line has it.
            with_bytes: Whether to read the blobs of bytes; without them, the references to them stay.

        Raises:
            JournalError: If a blob cannot be read, or the value is too large: a few blobs can name each other again and again.
            TooMuchError: If all values that were unpacked are.
        """
        unpacking = _Unpacking(self, self._largest, with_bytes=with_bytes)
        try:
            return unpacking.value(value)
        except (LookupError, RecursionError, TypeError, ValueError) as error:
            raise self._foreign(error) from error
        finally:
            self._spend(unpacking.bytes)

    def _foreign(self, error: Exception) -> JournalError:
        return JournalError(f"{self._directory} has something that codeact-team did not write: {error}")

    def _spend(self, size: int) -> None:
        """Count bytes that were read or unpacked."""
        if self._left is None:
            return
        self._left -= size
        if self._left < 0 and self._counts_disk:
            self._counts_disk = False
            self._left += 2 * _used_by(self._directory)
        if self._left < 0:
            raise TooMuchError(
                f"{self._directory}: the files that the run refers to are together too large to be read"
            )

    def _pack(self, value: JsonValue) -> JsonValue:
        if isinstance(value, str) and len(value) > _LARGE and (found := _bytes_of(value)) is not None:
            key, held = found
            # in base64 nobody has looked for all spellings of a credential; as bytes they would be plain
            if not self._is_hidden(held):
                return {key: self.keep(held), "size": len(held)}
        packed: JsonValue = value
        if isinstance(value, list):
            packed = [self._pack(item) if isinstance(item, _PARTS) else item for item in value]
        elif isinstance(value, dict):
            packed = {
                f"${key}" if key.startswith("$") else key: self._pack(item)
                if isinstance(item, _PARTS)
                else item
                for key, item in value.items()
            }
        elif not isinstance(value, str):
            return value
        data = as_json(packed)
        return packed if len(data) <= _LARGE else {_REFERENCE: self.keep(data), "size": len(data)}

    def _path(self, digest: str) -> Path:
        if len(digest) != _DIGEST or not digest.isalnum():
            raise JournalError(
                f"{digest!r} is not a digest: the journal is damaged, or was not written by codeact-team"
            )
        return self._directory / digest[:2] / digest[2:]

    def _add(self, digest: str, data: bytes, *, of_file: bool = False) -> bool:
        """Keep bytes. Returns whether they are kept: there may be no room for a file."""
        if digest in self._known:
            return True
        above, name = digest[:2], digest[2:]
        try:
            with below(self._top_with(above), above) as directory:
                if not _is_whole(directory, name, len(data)):
                    size = size_without_holes(data)
                    if of_file and not self._room.has_for_file(size):
                        return False
                    write_whole(directory, name, data, sync=self._sync)
                    self._room.use(size)
                if self._sync:
                    sync(name, directory)
                    os.fsync(directory)
        except OSError as error:
            raise JournalError(
                f"{self._path(digest)} cannot be written: {error.strerror}. The run stops here, and can be resumed"
            ) from error
        self._known.add(digest)
        return True

    def _top_with(self, name: str) -> int:
        """The directory, open, after making one of this name in it unless it exists."""
        if name not in self._made:
            with made_named(self._directory / name, 0o700):
                self._made.add(name)
            if self._sync:
                sync(self._directory)
                sync(self._directory.parent)
        if self._top is None:
            self._top = open_named(self._directory, DIRECTORY)
            self._closing = weakref.finalize(self, os.close, self._top)
        return self._top

    def close(self) -> None:
        """Close the directory, if it is open. Idempotent."""
        if self._top is not None:
            self._closing()
            self._top = None


def _is_whole(directory: int, name: str, size: int) -> bool:
    """Whether a blob of this size is there; what a power cut has torn is written once more."""
    with suppress(FileNotFoundError):
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        return stat.S_ISREG(status.st_mode) and status.st_size == size
    return False


def _changed(path: Path) -> JournalError:
    return JournalError(f"{path} was changed since it was written: its digest differs")


def is_light(value: JsonValue) -> bool:
    """Whether a value has at most :data:`_LIGHT` characters, keys and items. Looks at no more than that."""
    most, pending = _LIGHT, [value]
    while pending:
        inner = pending.pop()
        most -= 1
        if isinstance(inner, str | list | dict):
            most -= len(inner)
            if most < 0:
                return False
        if isinstance(inner, list):
            pending += inner
        elif isinstance(inner, dict):
            pending += inner.keys()
            pending += inner.values()
    return most >= 0


class _Unpacking:
    """Unpacks one value. Each blob is read once; it counts as often as it is in the value."""

    def __init__(self, blobs: Blobs, largest: int, *, with_bytes: bool) -> None:
        self._blobs = blobs
        self._with_bytes = with_bytes
        self._largest = largest
        self._known: dict[tuple[str, str], tuple[JsonValue, int, int]] = {}
        """By key and digest, the value of a blob, the bytes of memory that it takes, and how many parts it has."""
        self.bytes = self._parts = 0
        """Of all that was unpacked."""

    def value(self, value: JsonValue) -> JsonValue:
        """A value without references."""
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if not isinstance(value, dict):
            return value
        for key in (_REFERENCE, *_IN_BASE64):
            if key in value:
                if key != _REFERENCE and not self._with_bytes:
                    return value
                return self._held(key, str(value[key]))
        return {
            key[1:] if key.startswith("$") else key: self.value(item)
            if isinstance(item, (dict, list))
            else item
            for key, item in value.items()
        }

    def _held(self, key: str, digest: str) -> JsonValue:
        if (known := self._known.get((key, digest))) is not None:
            found, size, parts = known
            self._count(size, parts)
            return found
        size, parts = self.bytes, self._parts
        data = self._blobs.read(digest)
        if key == _REFERENCE:
            self._count(_memory_of(data), 1 if data.startswith(b'"') else _parts_of(data))
            found = self.value(parse(data))
        else:
            self._count(len(data) * 4 // 3, 1)
            found = _IN_BASE64[key][0](data).decode()
        self._known[key, digest] = found, self.bytes - size, self._parts - parts
        return found

    def _count(self, size: int, parts: int) -> None:
        self.bytes += size
        self._parts += parts
        if self.bytes > self._largest or self._parts > MAX_PARTS:
            raise JournalError(
                f"the record is too large to be read: a value has more than {self._largest >> 20} MiB, or {MAX_PARTS:,} parts"
            )


def _memory_of(data: bytes) -> int:
    """Bytes of memory that a text takes: one wide character makes all others larger."""
    return sys.getsizeof(data.decode(errors="replace"))


def _stays(data: bytes) -> bool:
    """Whether a value stays as it is, as it is nearly always: nothing in it is large, and no key begins with "$"."""
    return len(data) <= _LARGE and b'"$' not in data


def as_json(value: JsonValue) -> bytes:
    """A value as JSON without blanks. Half a surrogate, which no encoding can write, is escaped."""
    # no other thread runs while a value is written: one that has many parts is written part by part
    if isinstance(value, list) and len(value) > _MANY:
        return b"[%b]" % b",".join(map(as_json, value))
    if isinstance(value, dict) and len(value) > _MANY:
        return b"{%b}" % b",".join(b"%b:%b" % (as_json(key), as_json(item)) for key, item in value.items())
    try:
        return to_json(value)
    except PydanticSerializationError:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace")


def _bytes_of(text: str) -> tuple[str, bytes] | None:
    """The bytes of a text in base64, and the key of its spelling; ``None`` if encoding them would not give the same text."""
    for key, (encode, special) in _IN_BASE64.items():
        with suppress(ValueError):
            held = base64.b64decode(text, special, validate=True)
            if encode(held).decode() == text:
                return key, held
    return None


def sync(path: str | Path, within: int | None = None) -> None:
    """Put a file, or the names in a directory, on the disk, so that it survives a power cut. Blocks."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=within)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
