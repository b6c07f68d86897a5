"""The workspace of an executor: data given to the code, files that code makes or changes, and copies of these."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import unicodedata
from collections.abc import AsyncGenerator, Awaitable, Callable, Container, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from codeact_team.core.aio import FairLock, beside_the_loop, to_the_end
from codeact_team.core.execution import MAX_BYTES, Artifact
from codeact_team.core.executor_interface import (
    Change,
    ChangedFile,
    Changes,
    NewFiles,
    RecordedFile,
    SavedFile,
    Workspace,
)
from codeact_team.errors import SandboxError, SettingError
from codeact_team.executors.workspace.directory import STATUS_BLOCK
from codeact_team.executors.workspace.files import LONG, FileState, Snapshot, Taking, WorkspaceFiles, compare
from codeact_team.executors.workspace.given import Given, GivenData
from codeact_team.files.atomic import Directory, numbered
from codeact_team.files.opening import opened
from codeact_team.session.host import Session
from codeact_team.session.protocol import KEPT_APART, MAX_FILE_BYTES, MIB
from codeact_team.text.visibility import readable

_OF_THE_NAME = (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ)
"""Errors of a file that no person can make room for in the directory."""


@dataclass
class _Contents:
    """The present files, and their earlier states."""

    files: WorkspaceFiles
    before: Snapshot
    before_agents: Snapshot
    """As they were when an agent last asked for new ones."""
    recorded: Mapping[str, RecordedFile] = field(default_factory=dict[str, RecordedFile])
    recorded_as: Mapping[str, FileState] = field(default_factory=dict[str, FileState])
    """The files when they were recorded."""


class Location(NamedTuple):
    """Where a workspace is: see :class:`Workspace`."""

    path: Path | None
    lasts: bool = False
    is_own: bool = True


class SandboxWorkspace(Workspace):
    """The workspace of an executor, in its sandbox or on this machine.

    An environment begins and ends it. Until then, and for a fork always, it has no changes and no files to save.

    Args:
        location: Where it is.
        turns: Held by the user of the code or of the files.
        data: The data for the code.
        mib: How much may be copied out at once; ``None`` for any amount.
    """

    def __init__(
        self,
        location: Callable[[], Location],
        turns: FairLock,
        data: GivenData | None = None,
        mib: int | None = None,
    ) -> None:
        self._location = location
        self._turns = turns
        self._data = data or GivenData([], mib=None, files=None)
        self._room = None if mib is None else mib * MIB
        self._later: list[Given] = []
        """The data that was added."""
        self._contents: _Contents | None = None
        self._changed_before: Mapping[str, Change] = {}
        self._copies = CopyNames()
        self._added: set[str] = set()
        """Names of files that the code has not made."""
        self._session: Callable[[], Awaitable[Session]] | None = None
        self._remove_at_end: Callable[[str], None] | None = None

    @property
    def path(self) -> Path | None:
        return self._location().path

    @property
    def lasts(self) -> bool:
        return self._location().lasts

    @property
    def is_own(self) -> bool:
        return self._location().is_own

    def use_session(
        self, session: Callable[[], Awaitable[Session]], remove_at_end: Callable[[str], None]
    ) -> None:
        """Put, get and list files by a session, which may have rights and directories of its own.

        ``session`` starts it unless it runs; ``remove_at_end`` removes a file when the executor stops.
        """
        self._session, self._remove_at_end = session, remove_at_end

    async def given(self) -> Sequence[Given]:
        """All that is copied into the workspace. Raises a ``SettingError`` if it cannot be given."""
        return await self._data.found()

    async def check(self, files: WorkspaceFiles | None) -> None:
        """Raise a ``SettingError`` if the data cannot be given. ``files`` are those that are there already, if any can be."""
        given = await self._data.found()
        if files is not None:
            await files.check(given)

    async def begin(self, files: WorkspaceFiles, report: Callable[[str], None]) -> None:
        """Copy the data to the files of the sandbox, which runs, and take a first snapshot. Idempotent.

        ``report`` gets a line about a copy that takes a while. Raises a ``SettingError`` if a file cannot be given, and a
        ``SandboxError`` if it cannot be copied.
        """
        if self._contents is not None:
            return
        given = [*await self._data.found(), *self._later]
        await self._report_copy(files, given, report)
        # what the code has made of it before the run was interrupted is restored afterwards
        await files.put(given, replace=self.lasts and self.is_own)
        before = Snapshot() if files.is_empty and not given else await files.snapshot()
        self._contents = _Contents(files, before, before)

    async def add_data(self, given: Sequence[Given], report: Callable[[str], None]) -> None:
        """Copy more data to the files. For the holder of the turns.

        Raises as :meth:`begin`.
        """
        files = self._files
        await self._report_copy(files, given, report)
        if not files.outlasts_sandbox:
            there = (await files.snapshot()).files
            if taken := next((one for one in given if one.path in there), None):
                raise SettingError(
                    f"data: {taken.source} would be {taken.path} in the workspace, where another file has that name, and is "
                    "not overwritten: rename it"
                )
        await files.put(given)
        self._later += given
        assert self._contents is not None, "there are files"
        now = (await files.snapshot()).files
        # else they would count as made by code
        added = {one.path: now[one.path] for one in given if one.path in now}
        self._contents.before.files |= added
        self._contents.before_agents.files |= added

    async def _report_copy(
        self, files: WorkspaceFiles, given: Sequence[Given], report: Callable[[str], None]
    ) -> None:
        """Report a copy that takes a while, and that it stays where it does."""
        if (size := sum(one.size for one in given)) <= LONG:
            return
        if await files.clones(max(given, key=lambda one: one.size)):
            return
        path, lasts, is_own = self._location()
        stays = f" {path}, where it stays{' as long as the run is kept' if is_own else ''}" if lasts else ""
        report(f"copying {size // MIB:,} MiB of data into the workspace{stays}")

    def end(self) -> None:
        """Forget the files, which are gone, or may be changed by others."""
        self._contents = None

    def sandbox_ended(self) -> None:
        """Forget the files if they were in the sandbox, which is gone."""
        if self._contents is not None and not self._contents.files.outlasts_sandbox:
            self.end()

    def take_over(self, other: SandboxWorkspace) -> None:
        """Take the files of another workspace, which has none afterwards."""
        self._contents, other._contents = other._contents, None

    async def put(self, path: str, data: bytes | str, *, temporary: bool = False) -> str:
        _check_path(path)
        if temporary and "/" in path:
            raise SettingError(f"{path}: a temporary file is given by its name alone, without a directory")
        if isinstance(data, str):
            data = data.encode()
        if len(data) > MAX_FILE_BYTES:
            raise SettingError(
                f"{path}: it has {len(data)} bytes; a file may have at most {MAX_FILE_BYTES // MIB} MiB"
            )
        if self._session is None or self._remove_at_end is None:
            return await super().put(path, data)
        async with self._turns:
            session = await self._session()
            if temporary:
                path = f"{KEPT_APART}/{path}"
                self._remove_at_end(path)
            await session.put_file(path, data)
        return path

    async def get(self, path: str) -> bytes:
        _check_path(path)
        if self._session is None:
            return await super().get(path)
        async with self._turns:
            return await (await self._session()).get_file(path)

    async def list(self) -> Mapping[str, int]:
        if self._session is None:
            return await super().list()
        async with self._turns:
            return await (await self._session()).list_files()

    async def changed(self) -> Changes:
        async with self._turns:
            if (there := self._contents) is None:
                return Changes()
            before, there.before = there.before, await there.files.snapshot()
            earlier, self._changed_before = self._changed_before, {}
            return await asyncio.to_thread(compare, before, there.before, earlier)

    def changed_before(self, changes: Mapping[str, Change]) -> None:
        self._changed_before = changes

    async def new_files(self, pictures: int) -> NewFiles:
        async with self._turns:
            if (there := self._contents) is None:
                return NewFiles()
            before, there.before_agents = there.before_agents, await there.files.snapshot()
            changes = await asyncio.to_thread(compare, before, there.before_agents)
            files = [file for file in changes.files if file.path not in self._added]
            drawn = [file for file in files if file.path.lower().endswith(".png") and file.size <= MAX_BYTES]
            read = [await there.files.read_whole(file.path, file.size) for file in drawn[:pictures]]
            return NewFiles(files, [Artifact("image/png", data) for data in read if data])

    async def save(
        self, files: Sequence[ChangedFile], directory: str | os.PathLike[str] | int
    ) -> Sequence[SavedFile]:
        async with self._turns:
            # of many long names it takes its time
            await to_the_end(asyncio.to_thread(lambda: [self._copies.of(file.path) for file in files]))
            source, room = self._files, self._room
            saved: list[SavedFile] = []
            with opened(directory) as top:
                target = Directory(top)
                for file in files:
                    saved.append(await self._save(source, file, target, room))
                    if room is not None and saved[-1].copy is not None:
                        # a file may claim any size
                        room -= file.size
            return saved

    async def _save(
        self, source: WorkspaceFiles, file: ChangedFile, target: Directory, room: int | None
    ) -> SavedFile:
        if any(part.startswith(".") for part in file.path.split("/")):
            # programs of the person's look for such files, and do what these say
            return SavedFile(file.path, None, "it is hidden")
        if room is not None and file.size > room:
            return SavedFile(file.path, None, f"it has {file.size:,} bytes, and there is no room for it")
        try:
            return SavedFile(file.path, await _copy(source, file, target, self._copies.of(file.path)))
        except (OSError, SandboxError) as error:
            is_due = isinstance(error, OSError) and error.errno not in _OF_THE_NAME
            return SavedFile(file.path, None, _reason(error), is_due=is_due)

    async def add(self, name: str, data: bytes) -> str:
        async with self._turns:
            added = await self._files.add(name, data)
            self._added.add(added)
            return added

    async def record(self, keep: Callable[[bytes], str | None]) -> Mapping[str, RecordedFile]:
        async with self._turns:
            if (there := self._contents) is None:
                return {}
            digests: dict[str, str | None] = {}

            def keep_file(path: str, data: bytes) -> None:
                digests[path] = keep(data)

            now = (await there.files.snapshot(Taking(keep_file, there.recorded_as))).files
            there.recorded = await beside_the_loop(len(now), lambda: _recorded(there, now, digests))
            there.recorded_as = now
            return there.recorded

    async def restore(
        self, contents: Mapping[str, Path], executable: Container[str], gone: Sequence[str]
    ) -> None:
        async with self._turns:
            files = self._files
            await asyncio.to_thread(self._refuse_too_many_names, contents)
            await files.remove(gone)
            given = [_kept(path, source, path in executable) for path, source in contents.items()]
            await files.put(given, replace=True)

    def _refuse_too_many_names(self, contents: Mapping[str, Path]) -> None:
        """Refuse contents that would exceed the room, as a file with several names comes back as several files."""
        sizes = {source: source.stat().st_blocks * STATUS_BLOCK for source in {*contents.values()}}
        again = sum(sizes[source] for source in contents.values()) - sum(sizes.values())
        if self._room is not None and again > self._room:
            raise SandboxError(
                f"the files of the workspace cannot be brought back: {again // MIB:,} MiB of them are the same content under "
                f"other names, and workspace_mib is {self._room // MIB}: begin a new run"
            )

    @property
    def _files(self) -> WorkspaceFiles:
        if self._contents is None:
            raise SandboxError("there is no workspace: its executor has not started, or was stopped")
        return self._contents.files


def _check_path(path: str) -> None:
    parts = PurePosixPath(path)
    if not parts.parts or parts.is_absolute() or ".." in parts.parts or "\0" in path:
        raise SettingError(f"{path!r} is not the path of a file below the workspace")


def _recorded(
    there: _Contents, now: Mapping[str, FileState], digests: Mapping[str, str | None]
) -> Mapping[str, RecordedFile]:
    """All files as they are recorded now; the same object as before if none has changed."""
    if now == there.recorded_as:
        return there.recorded
    return {
        path: there.recorded[path]
        if there.recorded_as.get(path) == state
        else RecordedFile(digests.get(path), state.size, state.is_executable)
        for path, state in now.items()
    }


def _kept(path: str, source: Path, is_executable: bool) -> Given:
    # the directory of the runs may be a link
    source = source.resolve()
    return Given(path, str(source), stat.S_IFREG | (0o755 if is_executable else 0o644), source.stat().st_size)


class CopyNames:
    """Names of copies that look different, as file systems may ignore case, and how letters are composed."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._taken: set[str] = set()
        self._numbered: dict[str, Iterator[str]] = {}
        """By folded name, the names that are left."""

    def of(self, path: str) -> str:
        """The path of the copy of a file; always the same. Blocks, unless it is known."""
        if (name := self._names.get(path)) is None:
            wanted = readable(path)
            above, _, last = wanted.rpartition("/")
            left = self._numbered.setdefault(_folded(wanted), numbered(last))
            candidates = (os.path.join(above, one) for one in left)
            name = next(one for one in candidates if _folded(one) not in self._taken)
            self._names[path] = name
            self._taken.add(_folded(name))
        return name


def _folded(path: str) -> str:
    """The same text for paths that look the same."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", path).casefold())


async def _copy(source: WorkspaceFiles, file: ChangedFile, target: Directory, path: str) -> str:
    above, _, _ = path.rpartition("/")
    target.make(above)
    left = file.size
    with target.new_file(path) as new:
        async with aclosing(_pieces(source, file)) as pieces:
            async for piece in pieces:
                left -= len(piece)
                await to_the_end(asyncio.to_thread(new.write, piece))
        if left:
            raise SandboxError("it became shorter while it was read")
        name = await to_the_end(asyncio.to_thread(new.settle_beside))
    return os.path.join(above, name)


async def _pieces(source: WorkspaceFiles, file: ChangedFile) -> AsyncGenerator[bytes]:
    """The content of a file. Raises a ``SandboxError``: an ``OSError`` is one of the directory for copies."""
    try:
        async with aclosing(source.read(file.path, file.size)) as pieces:
            async for piece in pieces:
                yield piece
    except OSError as error:
        raise SandboxError(_reason(error)) from error


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
