"""The files of a workspace: what has changed between two snapshots, and reading and writing them on this machine."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shlex
import stat
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from codeact_team.core.aio import to_the_end
from codeact_team.core.executor_interface import Change, ChangedFile, Changes
from codeact_team.errors import SandboxError, SettingError
from codeact_team.executors.workspace.given import Given
from codeact_team.files.atomic import Directory, NewFile, Taken, is_unchanged, same_content
from codeact_team.files.opening import below, opened, opened_file
from codeact_team.files.trees import walk
from codeact_team.session.protocol import KEPT_APART, MIB

T = TypeVar("T")

MAX_SEEN = 200_000
"""Entries of all kinds in a snapshot. In a directory of the person's that has more, changes cannot be found."""
_MAX_CHANGES = 10_000
MAX_DEPTH = 64
"""Directories inside one another that a snapshot looks into."""
LONG = 64 * MIB
"""Bytes that take a while to copy. The content of a longer file is not taken."""
_CHUNK = 1 << 20
_MODE = 0o644

_OURS = re.compile(rf"tmp_code_[0-9a-f]{{64}}\.[^/]*|{re.escape(KEPT_APART)}|\.put-[0-9a-f]+")
PYTHON_CACHE = "__pycache__"


class FileState(NamedTuple):
    """The state of a file. A file whose state is equal is taken to be unchanged."""

    size: int
    stamp: Hashable
    """Differs when somebody has written to the file: its times and its inode."""
    is_executable: bool = False
    """Whether its owner may run it."""


class Taking(NamedTuple):
    """Takes the contents of files while a snapshot is taken.

    Attributes:
        on_content: Gets the path and the content of each, in a thread.
        known: By path, the states of files whose contents are known. They are not taken again.
    """

    on_content: Callable[[str, bytes], object]
    known: Mapping[str, FileState]

    def wants(self, path: str, state: FileState) -> bool:
        """Whether it takes the content of a file."""
        return state.size <= LONG and self.known.get(path) != state


@dataclass
class Snapshot:
    """The regular files of a workspace.

    Attributes:
        files: By path, as :func:`os.fsdecode` has it; without files of the team, and caches of Python.
        others: How many entries are neither files nor directories, such as links.
        unseen: How many directories were not looked into, being too deep or unreadable.
        is_whole: Whether there were no more than :data:`MAX_SEEN` entries.
    """

    files: dict[str, FileState] = field(default_factory=dict[str, FileState])
    others: int = 0
    unseen: int = 0
    is_whole: bool = True


def is_ours(name: str) -> bool:
    """Whether an entry of this name at the top of a workspace belongs to the team, and not to the result of the code."""
    return _OURS.fullmatch(name) is not None


def compare(before: Snapshot, now: Snapshot, earlier: Mapping[str, Change] = MappingProxyType({})) -> Changes:
    """List the files made or changed between two snapshots, and the files of ``earlier`` changes that still exist."""
    if not before.is_whole:
        remark = f"the workspace had more than {MAX_SEEN:,} files before, so new files cannot be told apart"
        return Changes(remark=remark)
    changed = [
        ChangedFile(
            path,
            state.size,
            earlier.get(path) or (Change.CHANGED if path in before.files else Change.MADE),
        )
        for path, state in sorted(now.files.items())
        if path in earlier or before.files.get(path) != state
    ]
    remarks: list[str] = []
    if (left_out := len(changed) - _MAX_CHANGES) > 0:
        remarks.append(f"{left_out:,} more files were made or changed, and are not listed")
    if (others := now.others - before.others) > 0:
        remarks.append(f"links and the like are not listed: {others:,}")
    if not now.is_whole:
        remarks.append(f"the workspace has more than {MAX_SEEN:,} files, and not all were checked")
    if (unseen := now.unseen - before.unseen) > 0:
        remarks.append(f"directories that cannot be read, or are too deep, were not checked: {unseen:,}")
    return Changes(changed[:_MAX_CHANGES], "; ".join(remarks))


def take_snapshot(place: Path, see: Callable[[int, str, FileState], None] | None = None) -> Snapshot:
    """Look at a directory and below. Follows no links, leaves no file system. Blocks. Raises an ``OSError``.

    ``see`` is called with the open directory, the path and the state of each file.
    """
    snapshot = Snapshot()
    left = MAX_SEEN

    def skip(*_: object) -> None:
        snapshot.unseen += 1

    with opened(place) as top:
        for directory in walk(top, skip):
            above = "".join(f"{name}/" for name in directory.names)
            for name, status in directory.entries():
                if not left:
                    snapshot.is_whole = False
                    return snapshot
                left -= 1
                if name == PYTHON_CACHE or (not above and is_ours(name)):
                    continue
                if stat.S_ISREG(status.st_mode):
                    stamp = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
                    state = FileState(status.st_size, stamp, bool(status.st_mode & stat.S_IXUSR))
                    snapshot.files[path := above + name] = state
                    if see is not None:
                        see(directory.descriptor, path, state)
                elif not stat.S_ISDIR(status.st_mode):
                    snapshot.others += 1
                elif len(directory.names) < MAX_DEPTH:
                    directory.enter(name, status)
                else:
                    skip()
    return snapshot


class WorkspaceFiles(ABC):
    """Reads and writes the files of a workspace. They are hostile, and may change at any time.

    Attributes:
        outlasts_sandbox: Whether they are still there when the sandbox has stopped.
        is_empty: Whether it is known that nothing was there when the sandbox had started.
    """

    outlasts_sandbox: bool
    is_empty: bool

    @abstractmethod
    async def check(self, given: Sequence[Given]) -> None:
        """Check the names of the data, as far as the files are known before the sandbox starts.

        Raises a ``SettingError`` if something else has one of the names.
        """

    @abstractmethod
    async def put(self, given: Sequence[Given], *, replace: bool = False) -> None:
        """Copy data into the workspace; to ``replace`` whatever has the names, missing directories are made, too.

        Raises a ``SettingError`` if something else has one of the names, and a ``SandboxError`` if it cannot be copied.
        """

    async def clones(self, one: Given) -> bool:
        """Whether a copy of a file takes neither time nor room, until the code changes it."""
        return False

    @abstractmethod
    async def remove(self, paths: Sequence[str]) -> None:
        """Remove files, as a snapshot names them. A missing one is ignored. Raises a ``SandboxError``."""

    @abstractmethod
    async def snapshot(self, taking: Taking | None = None) -> Snapshot:
        """Look at the present files. One that cannot be read is not taken. Raises a ``SandboxError``."""

    @abstractmethod
    def read(self, path: str, size: int) -> AsyncGenerator[bytes]:
        """Read a regular file of a snapshot, piece by piece, and no more than its ``size`` there. Raises an ``OSError``."""

    async def read_whole(self, path: str, size: int) -> bytes | None:
        """Read a regular file of a snapshot as a whole; ``None`` if it cannot be read."""
        try:
            # an empty file needs no program
            return b"".join([piece async for piece in self.read(path, size)]) if size else b""
        except OSError:
            return None

    @abstractmethod
    async def add(self, name: str, data: bytes) -> str:
        """Add a file; see :meth:`codeact_team.core.executor_interface.Workspace.add`."""


class HostFiles(WorkspaceFiles):
    """The files of a workspace that is a directory of this machine; ``name`` is how the person names it."""

    outlasts_sandbox = True
    is_empty = False

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._name = name

    async def check(self, given: Sequence[Given]) -> None:
        if given and self._directory.is_dir():
            await _in_thread(lambda stop: self._check(given, stop))

    async def put(self, given: Sequence[Given], *, replace: bool = False) -> None:
        if given:
            await _in_thread(lambda stop: self._put(given, stop, replace=replace))

    async def clones(self, one: Given) -> bool:
        return await to_the_end(asyncio.to_thread(self._clones, one))

    async def remove(self, paths: Sequence[str]) -> None:
        try:
            await to_the_end(asyncio.to_thread(self._remove, paths))
        except OSError as error:
            raise SandboxError(
                f"{error.filename} cannot be removed from the workspace {self._name}: {error.strerror}"
            ) from error

    async def snapshot(self, taking: Taking | None = None) -> Snapshot:
        def work(stop: threading.Event) -> Snapshot:
            # while its directory is open: to come there once more takes longer than to read a short file
            return take_snapshot(self._directory, taking and partial(_read_content, taking, stop))

        try:
            return await _in_thread(work)
        except OSError as error:
            raise SandboxError(
                f"the files of the workspace {self._name} cannot be listed: {error.strerror}"
            ) from error

    async def read(self, path: str, size: int) -> AsyncGenerator[bytes]:
        with ExitStack() as stack:
            # most files are short, and a thread costs more than to read them
            file, data = await to_the_end(asyncio.to_thread(self._begin, path, size, stack))
            while data:
                yield data
                size -= len(data)
                if not size:
                    break
                # to the end: it must not be closed meanwhile
                data = await to_the_end(asyncio.to_thread(os.read, file, min(size, _CHUNK)))

    async def add(self, name: str, data: bytes) -> str:
        return await to_the_end(asyncio.to_thread(self._add, name, data))

    def _begin(self, path: str, size: int, stack: ExitStack) -> tuple[int, bytes]:
        """Open a file, and read its first piece."""
        file = stack.enter_context(opened_file(stack.enter_context(opened(self._directory)), path))
        return file, os.read(file, min(size, _CHUNK))

    def _add(self, name: str, data: bytes) -> str:
        with (
            opened(self._directory) as top,
            Directory(top, follows_owner=True).new_file(name, mode=_MODE) as new,
        ):
            new.write(data)
            return new.settle_beside()

    def _check(self, given: Sequence[Given], stop: threading.Event) -> None:
        with opened(self._directory) as top:
            for one in given:
                _raise_if(stop)
                if _is_taken(one, top):
                    raise self._taken(one)

    def _remove(self, paths: Sequence[str]) -> None:
        with opened(self._directory) as top:
            for path in paths:
                above, _, name = path.rpartition("/")
                with suppress(FileNotFoundError, NotADirectoryError), below(top, above) as directory:
                    os.unlink(name, dir_fd=directory)

    def _put(self, given: Sequence[Given], stop: threading.Event, *, replace: bool) -> None:
        with opened(self._directory) as top:
            directory = Directory(top, follows_owner=True)
            for one in given:
                try:
                    if replace:
                        directory.make(one.path.rpartition("/")[0])
                    _put(one, directory, stop, replace=replace)
                except (Taken, NotADirectoryError) as error:
                    raise self._taken(one) from error
                except OSError as error:
                    if error.errno == errno.ELOOP:
                        raise self._taken(one) from error
                    raise SandboxError(
                        f"data: {one.source} cannot be copied into the workspace: {error.strerror}"
                    ) from error

    def _clones(self, one: Given) -> bool:
        # what is wrong will be found when it is put there
        with suppress(OSError), opened(self._directory) as top, one.open() as source:
            with Directory(top).new_file(os.path.basename(one.path)) as new:
                return new.clone(source.fileno(), one.size)
        return False

    def _taken(self, one: Given) -> SettingError:
        place = os.path.join(self._name, one.path)
        return SettingError(
            f"data: {one.source} would be {one.path} in the workspace {self._name}, where another file has that name, "
            f"and is not overwritten, as you or the code may need it: remove it (rm {shlex.quote(place)}), or rename one "
            "of them; without a work_dir, each run has a workspace of its own"
        )


def _read_content(taking: Taking, stop: threading.Event, directory: int, path: str, state: FileState) -> None:
    """Read the content of a file in an open directory if it is wanted and can be read."""
    _raise_if(stop)
    if not taking.wants(path, state):
        return
    size, pieces = state.size, list[bytes]()
    try:
        with opened_file(directory, path.rpartition("/")[2]) as file:
            while size and (data := os.read(file, min(size, _CHUNK))):
                pieces.append(data)
                size -= len(data)
    except OSError:
        return
    taking.on_content(path, b"".join(pieces))


def _is_taken(one: Given, top: int) -> bool:
    above, _, name = one.path.rpartition("/")
    try:
        with below(top, above) as directory:
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if one.target:
                return not stat.S_ISLNK(status.st_mode) or os.readlink(name, dir_fd=directory) != one.target
    except FileNotFoundError:
        return False
    except OSError:
        return True
    if not one.is_file or not stat.S_ISREG(status.st_mode):
        return stat.S_IFMT(status.st_mode) != stat.S_IFMT(one.mode)
    with opened_file(top, one.path) as there, one.open() as source:
        return not (same_content(there, source.fileno()) or is_unchanged(there))


def _put(one: Given, directory: Directory, stop: threading.Event, *, replace: bool) -> None:
    if one.target:
        directory.link(one.path, one.target)
    elif not one.is_file:
        directory.make(one.path)
    else:
        with one.open() as source, directory.new_file(one.path, mode=_MODE | (one.mode & 0o100)) as new:
            _copy(source.fileno(), new, one.size, stop)
            if replace:
                new.replace()
            else:
                new.settle()


def _copy(source: int, new: NewFile, size: int, stop: threading.Event) -> None:
    """Copy as many bytes as the file had at first: one that grows meanwhile would have no end."""
    if new.clone(source, size):
        return
    while size and (data := os.read(source, min(size, _CHUNK))):
        _raise_if(stop)
        new.write(data)
        size -= len(data)


class _Stopped(Exception):
    pass


def _raise_if(stop: threading.Event) -> None:
    if stop.is_set():
        raise _Stopped


async def _in_thread(work: Callable[[threading.Event], T]) -> T:
    """Work in a thread. If the caller is cancelled, ``stop`` is set, and the thread ends first."""
    stop = threading.Event()
    working = asyncio.ensure_future(asyncio.to_thread(work, stop))
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        stop.set()
        await to_the_end(asyncio.wait({working}))
        if not working.cancelled():
            working.exception()
        raise
