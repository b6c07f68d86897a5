"""Contents of a journal that are kept beside its lines, the references that stand for them, and the room that a run may take.

docs/reference/journal.md lists the references.
"""

from __future__ import annotations

import base64
import json
import os
import stat
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from hashlib import file_digest, sha256
from pathlib import Path
from threading import Lock
from typing import Any, cast

from pydantic import JsonValue
from pydantic_core import to_json

from codeact_team.core.atomic_files import size_without_holes, write_whole
from codeact_team.core.files import made_named, open_regular, opened, read_regular
from codeact_team.core.nesting import parse_json
from codeact_team.core.trees import files_below
from codeact_team.errors import JournalError

MAX_PARTS = 1 << 20
"""Values and keys; each takes about a hundred bytes of memory, however short it is."""


def parse(data: bytes) -> JsonValue:
    """The value of JSON; raises ``ValueError`` if it is none, is nested too deeply, or has too many parts."""
    # a text is one part, whatever is in it
    if not data.startswith(b'"') and parts_of(data) > MAX_PARTS:
        raise ValueError(f"it has more than {MAX_PARTS:,} parts")
    return parse_json(data)


def parts_of(data: bytes) -> int:
    """An upper bound of the number of values and keys in JSON."""
    return sum(map(data.count, (b",", b"[", b"{", b":"))) + 1


@contextmanager
def reading(what: object) -> Generator[None]:
    """Within it, something is read; raises :class:`JournalError`, with its name, where that fails."""
    try:
        yield
    except OSError as error:
        raise JournalError(f"{what} cannot be read: {error.strerror}") from error


MIB = 1 << 20
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
        self._most = float("inf") if mib is None else mib * MIB
        self._used = 0 if mib is None else used_by(directory)
        self._lock = Lock()

    @property
    def is_used_up(self) -> bool:
        """Whether nothing more may be written."""
        return self._used >= self._most

    def take(self, size: int) -> None:
        """Count bytes that are written."""
        with self._lock:
            self._used += size

    def has_for_file(self, size: int) -> bool:
        """Whether so many bytes of a file or an artifact may be written."""
        return self._used + size <= self._most * _FOR_FILES


def used_by(directory: Path) -> int:
    """How many bytes of the disk a directory takes; 0 if it does not exist. Blocks."""
    used = 0
    try:
        with opened(directory) as top:
            for _, _, status in files_below(top):
                used += status.st_blocks * 512
    except FileNotFoundError:
        return used
    except OSError as error:
        raise JournalError(f"what is in {directory} cannot be counted: {error.strerror}") from error
    return used


# docs/reference/journal.md describes these references
REFERENCE = "$blob"
SEE = "$see"
SINCE = "$since"
JSON = "$json"
LONGEST_CHAIN = 32
"""Requests that refer to the one before, until one has all of its messages again."""
_IN_BASE64: Mapping[str, tuple[Callable[[bytes], bytes], bytes]] = {
    "$bytes": (base64.b64encode, b"+/"),
    # as pydantic writes it
    "$url-bytes": (base64.urlsafe_b64encode, b"-_"),
}
_PARTS = (str, list, dict)
_LARGE = 1024
"""Bytes of JSON above which a value becomes a blob."""
LIGHT = 64 * 1024
"""Characters, keys and items of a value that takes no time worth a thread."""
_MANY = 1000
_MOST_TEXTS = 2000
"""Texts of lines that are remembered, as each request of a conversation refers to those before."""
_DIGEST = 64
LARGEST = 64 << 20
"""Bytes of a blob that is read as a whole, and by default of a value, in which a blob counts as often as it occurs."""


class Reference(dict[str, JsonValue]):
    """A reference, which is packed as it is."""


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
        most: Bytes that are read and unpacked, beyond those of all blobs, as one can be named again and again; ``None`` for any.
        entry_at: Reads the line of the journal at a place.
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
        entry_at: Callable[[int], Mapping[str, Any]] = lambda place: {},
    ) -> None:
        self.entry_at = entry_at
        self._largest = largest
        self._left = most
        self._counts_disk = most is not None
        self._directory = directory
        self._room = room
        self._sync = sync
        self._is_hidden = is_hidden
        self._known: set[str] = set()
        self._texts: dict[tuple[str | int, ...], str] = {}
        """Texts of lines that were referred to."""
        self._safe: set[Path] = set()
        """Directories whose own names are on the disk."""

    def keep(self, data: bytes) -> str:
        """Keep bytes, and return their digest."""
        return self._add(sha256(data).hexdigest(), data)

    def keep_if_room(self, data: bytes) -> str | None:
        """Keep bytes of a file or an artifact; ``None`` if no room is left for them, and they are not kept already."""
        digest = sha256(data).hexdigest()
        has_room = (
            digest in self._known
            or self._room is None
            or self._room.has_for_file(size_without_holes(data))
            or self._is_whole(digest, data)
        )
        return self._add(digest, data) if has_room else None

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
        if not is_light(value, _LARGE):
            return self._pack(value)
        data = _json(value)
        # where nothing is large, and no key begins with "$", which is nearly always, it stays as it is
        return value if len(data) <= _LARGE and b'"$' not in data else self._pack(value)

    def pack_fields(self, values: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
        """Values by the names of fields, each packed."""
        if is_light(fields := dict(values), _LARGE):
            data = _json(fields)
            if len(data) <= _LARGE and b'"$' not in data:
                return fields
        return {name: self.pack(value) for name, value in fields.items()}

    def unpack(self, value: JsonValue) -> JsonValue:
        """The value that was packed.

        Raises:
            JournalError: If a blob cannot be read, or the value is too large: a few blobs can name each other again and again.
            TooMuchError: If all values that were unpacked are.
        """
        unpacking = _Unpacking(self, self._largest)
        try:
            return unpacking.value(value)
        except (LookupError, RecursionError, TypeError, ValueError) as error:
            raise self._foreign(error) from error
        finally:
            self._spend(unpacking.bytes)

    def opened(self, value: JsonValue) -> JsonValue:
        """A packed value, read from its blob if it is one; its parts stay packed."""
        if not isinstance(value, dict) or REFERENCE not in value:
            return value
        try:
            return parse(self.read(str(value[REFERENCE])))
        except ValueError as error:
            raise self._foreign(error) from error

    def text_at(self, start: int, *path: str | int) -> str:
        """The text in the line at a place."""
        place = start, *path
        if (text := self._texts.get(place)) is not None:
            return text
        found: Any = self.entry_at(start)
        for key in path:
            found = self.opened(found[key])
        if not isinstance(found, str):
            raise ValueError("what is referred to is no text")
        # longer ones are blobs, unless somebody else wrote the journal
        if len(found) <= _LARGE:
            if len(self._texts) == _MOST_TEXTS:
                self._texts.clear()
            self._texts[place] = found
        return found

    def _foreign(self, error: Exception) -> JournalError:
        return JournalError(f"{self._directory} has what codeact-team does not write: {error}")

    def _spend(self, size: int) -> None:
        """Count bytes that were read or unpacked."""
        if self._left is None:
            return
        self._left -= size
        if self._left < 0 and self._counts_disk:
            self._counts_disk = False
            self._left += 2 * used_by(self._directory)
        if self._left < 0:
            raise TooMuchError(f"{self._directory}: what the run names is too much to be read as a whole")

    def _pack(self, value: JsonValue) -> JsonValue:
        # a character takes six bytes at most
        if isinstance(value, str) and len(value) < _LARGE // 6:
            return value
        if isinstance(value, str) and len(value) > _LARGE and (found := _bytes_of(value)) is not None:
            key, held = found
            # in base64 nobody has looked for all spellings of a credential; as bytes they would be plain
            if not self._is_hidden(held):
                return {key: self.keep(held), "size": len(held)}
        if isinstance(value, Reference):
            packed: JsonValue = {JSON: self._pack(value[JSON])} if JSON in value else value
        elif isinstance(value, list):
            packed = [self._pack(item) if isinstance(item, _PARTS) else item for item in value]
        elif isinstance(value, dict):
            packed = {
                f"${key}" if key.startswith("$") else key: self._pack(item)
                if isinstance(item, _PARTS)
                else item
                for key, item in value.items()
            }
        elif isinstance(value, str):
            packed = value
        else:
            return value
        data = _json(packed)
        return packed if len(data) <= _LARGE else {REFERENCE: self.keep(data), "size": len(data)}

    def _is_whole(self, digest: str, data: bytes) -> bool:
        """Whether the bytes are kept; what a power cut has torn is written once more."""
        try:
            status = self._path(digest).stat()
        except OSError:
            return False
        return stat.S_ISREG(status.st_mode) and status.st_size == len(data)

    def _path(self, digest: str) -> Path:
        if len(digest) != _DIGEST or not digest.isalnum():
            raise JournalError(f"{digest!r} is no digest: the journal is damaged, or not one of ours")
        return self._directory / digest[:2] / digest[2:]

    def _add(self, digest: str, data: bytes) -> str:
        if digest in self._known:
            return digest
        path = self._path(digest)
        try:
            if not self._is_whole(digest, data):
                with made_named(path.parent, 0o700) as directory:
                    write_whole(directory, path.name, data, sync=self._sync)
                if self._room is not None:
                    self._room.take(size_without_holes(data))
            if self._sync:
                sync(path)
                sync(path.parent)
                if path.parent not in self._safe:
                    sync(self._directory)
                    sync(self._directory.parent)
                    self._safe.add(path.parent)
        except OSError as error:
            raise JournalError(
                f"{path} cannot be written: {error.strerror}. The run stops here, and can be resumed"
            ) from error
        self._known.add(digest)
        return digest


def _changed(path: Path) -> JournalError:
    return JournalError(f"{path} is not what was written: its digest differs")


def is_reference(packed: Mapping[str, JsonValue]) -> bool:
    """Whether a packed mapping stands for a text."""
    return SEE in packed or JSON in packed or not packed.keys().isdisjoint(_IN_BASE64)


def is_light(value: JsonValue, most: int = LIGHT) -> bool:
    """Whether a value has at most so many characters, keys and items. Looks at no more than that."""
    pending = [value]
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

    def __init__(self, blobs: Blobs, largest: int) -> None:
        self._blobs = blobs
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
        for key in (REFERENCE, *_IN_BASE64):
            if key in value:
                return self._held(key, str(value[key]))
        if SEE in value:
            return self._seen(value[SEE])
        if SINCE in value:
            return self._since(value)
        if JSON in value:
            text = to_json(self.value(value[JSON])).decode()
            self._count(sys.getsizeof(text), 1)
            return text
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
        if key == REFERENCE:
            self._count(_memory_of(data), 1 if data.startswith(b'"') else parts_of(data))
            found = self.value(parse(data))
        else:
            self._count(len(data) * 4 // 3, 1)
            found = _IN_BASE64[key][0](data).decode()
        self._known[key, digest] = found, self.bytes - size, self._parts - parts
        return found

    def _seen(self, place: JsonValue) -> JsonValue:
        text = self._blobs.text_at(*cast("list[Any]", place))
        self._count(sys.getsizeof(text), 1)
        return text

    def _since(self, messages: dict[str, JsonValue]) -> JsonValue:
        pieces: list[tuple[int, JsonValue]] = []
        found: JsonValue = messages
        while isinstance(found, dict) and SINCE in found:
            if len(pieces) > LONGEST_CHAIN:
                raise ValueError("a request refers to too many others")
            pieces.append((_as_int(found["kept"]), found["more"]))
            ask: Any = self._blobs.entry_at(_as_int(found[SINCE]))["ask"]
            request: Any = self._blobs.opened(ask["request"])
            found = self._blobs.opened(request["messages"])
        whole: Any = self.value(found)
        for kept, more in reversed(pieces):
            added: Any = self.value(more)
            whole = [*whole[:kept], *added]
        return whole

    def _count(self, size: int, parts: int) -> None:
        self.bytes += size
        self._parts += parts
        if self.bytes > self._largest or self._parts > MAX_PARTS:
            raise JournalError(
                f"what is recorded is too large to be read: a value has more than {self._largest >> 20} MiB, or {MAX_PARTS:,} parts"
            )


def _as_int(value: JsonValue) -> int:
    if not isinstance(value, int):
        raise ValueError("a reference has no place")
    return value


def _memory_of(data: bytes) -> int:
    """Bytes of memory that a text takes: one wide character makes all others larger."""
    return sys.getsizeof(data.decode(errors="replace"))


def _json(value: JsonValue) -> bytes:
    # no other thread runs while a value is written: one that has many parts is written part by part
    if isinstance(value, list) and len(value) > _MANY:
        return b"[%b]" % b",".join(map(_json, value))
    if isinstance(value, dict) and len(value) > _MANY:
        return b"{%b}" % b",".join(b"%b:%b" % (_json(key), _json(item)) for key, item in value.items())
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="backslashreplace")


def _bytes_of(text: str) -> tuple[str, bytes] | None:
    """The bytes of a text in base64, and the key of its spelling; ``None`` if encoding them would not give the same text."""
    for key, (encode, special) in _IN_BASE64.items():
        with suppress(ValueError):
            held = base64.b64decode(text, special, validate=True)
            if encode(held).decode() == text:
                return key, held
    return None


def sync(path: Path) -> None:
    """Put a file, or the names in a directory, on the disk, so that it survives a power cut. Blocks."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
