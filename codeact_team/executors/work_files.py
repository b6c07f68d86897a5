"""The files in the workspace of an executor: those that a person gives, and those that code makes or changes."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path

from codeact_team.core.execution import MAX_BYTES, Artifact
from codeact_team.core.executor_interface import Change, ChangedFile, Changes, RecordedFile, SavedFile
from codeact_team.core.sandbox_description import DataFile
from codeact_team.errors import SandboxError
from codeact_team.executors.files.base import Files, Seen, Snapshot, compare
from codeact_team.executors.files.given import Given, GivenData
from codeact_team.executors.files.saving import CopyNames, save

_MIB = 1 << 20
_BLOCK = 512
"""Bytes, whatever the file system."""
_LONG = 64 * _MIB
"""Bytes whose copy takes its time; of a longer file, the content is not recorded."""


class WorkFiles:
    """What goes into a workspace before the first block, and what has changed there since.

    Args:
        data: What a person gives.
        mib: How much may be copied out at once; ``None`` for any.
    """

    def __init__(self, data: GivenData, mib: int | None) -> None:
        self._data = data
        self._room = None if mib is None else mib * _MIB
        self._files: Files | None = None
        self._before = self._before_pictures = Snapshot()
        self._changed_before: Mapping[str, Change] = {}
        self._copies = CopyNames()
        self._added: set[str] = set()
        """Names of files that are not of the code's making."""
        self._recorded: Mapping[str, RecordedFile] = {}
        self._recorded_as: Mapping[str, Seen] = {}
        """The files as they were then."""

    def described(self) -> Sequence[DataFile]:
        """What a person gives; see :meth:`codeact_team.StreamingCodeExecutor.data_files`."""
        return self._data.describe()

    async def check(self, files: Files | None) -> None:
        """Find out whether what is given can be given.

        Args:
            files: The workspace, if it can be there already.

        Raises:
            SettingError: If not.
        """
        given = await self._data.found()
        if files is not None:
            await files.check(given)

    async def begin(self, files: Files, tell: Callable[[str], None]) -> None:
        """Put what is given into a workspace, unless that is done, and remember what is there.

        Raises:
            SettingError: If something cannot be given.
            SandboxError: If it cannot be copied.
        """
        if self._files is not None:
            return
        given = await self._data.found()
        if (size := sum(one.size for one in given)) > _LONG:
            tell(f"copying {size // _MIB:,} MiB of data into the workspace")
        await files.put(given)
        self._before = Snapshot() if files.is_empty and not given else await files.snapshot()
        self._before_pictures = self._before
        self._files = files

    def end(self) -> None:
        """The workspace is there no more, or nobody knows what becomes of it."""
        self._files, self._recorded, self._recorded_as = None, {}, {}

    def sandbox_ended(self) -> None:
        """The sandbox is there no more, and what was in it."""
        if self._files is not None and not self._files.outlasts_sandbox:
            self.end()

    async def changed(self) -> Changes:
        """See :meth:`codeact_team.StreamingCodeExecutor.changed_files`."""
        if self._files is None:
            return Changes()
        before, self._before = self._before, await self._files.snapshot()
        earlier, self._changed_before = self._changed_before, {}
        return await asyncio.to_thread(compare, before, self._before, earlier)

    def changed_before(self, changes: Mapping[str, Change]) -> None:
        """See :meth:`codeact_team.StreamingCodeExecutor.changed_before`."""
        self._changed_before = changes

    async def saved_pictures(self, most: int) -> Sequence[Artifact]:
        """See :meth:`codeact_team.StreamingCodeExecutor.saved_pictures`."""
        if (files := self._files) is None:
            return ()
        before, self._before_pictures = self._before_pictures, await files.snapshot()
        changes = await asyncio.to_thread(compare, before, self._before_pictures)
        saved = [
            file
            for file in changes.files
            if file.path.lower().endswith(".png") and file.size <= MAX_BYTES and file.path not in self._added
        ]
        read = [await _read(files, file.path, file.size) for file in saved[:most]]
        return [Artifact("image/png", data) for data in read if data]

    async def save(
        self, wanted: Sequence[ChangedFile], directory: str | os.PathLike[str] | int
    ) -> Sequence[SavedFile]:
        """See :meth:`codeact_team.StreamingCodeExecutor.save_files`."""
        return await save(self._reached(), wanted, directory, self._copies, room=self._room)

    async def record(self, keep: Callable[[bytes], str | None]) -> Mapping[str, RecordedFile]:
        """See :meth:`codeact_team.StreamingCodeExecutor.record_files`."""
        if (files := self._files) is None:
            return {}
        now = (await files.snapshot()).files
        digests: dict[str, str | None] = {}

        def take(path: str, data: bytes) -> None:
            digests[path] = keep(data)

        await files.read_all(await asyncio.to_thread(self._unrecorded, now), take)
        self._recorded, self._recorded_as = await asyncio.to_thread(self._record, now, digests), now
        return self._recorded

    def _unrecorded(self, now: Mapping[str, Seen]) -> Mapping[str, int]:
        """The sizes of the files whose content is to be read."""
        known = self._recorded_as
        return {
            path: seen.size for path, seen in now.items() if seen.size <= _LONG and known.get(path) != seen
        }

    def _record(
        self, now: Mapping[str, Seen], digests: Mapping[str, str | None]
    ) -> Mapping[str, RecordedFile]:
        known = self._recorded_as
        return {
            path: self._recorded[path]
            if known.get(path) == seen
            else RecordedFile(digests.get(path), seen.size, seen.is_executable)
            for path, seen in now.items()
        }

    async def restore(
        self, wanted: Mapping[str, Path], executable: Container[str], gone: Sequence[str]
    ) -> None:
        """See :meth:`codeact_team.StreamingCodeExecutor.restore_files`."""
        files = self._reached()
        await asyncio.to_thread(self._refuse_too_many_names, wanted)
        await files.remove(gone)
        given = [_kept(path, source, path in executable) for path, source in wanted.items()]
        await files.put(given, replace=True)

    def _refuse_too_many_names(self, wanted: Mapping[str, Path]) -> None:
        """Refuse what would take more room than there is, as a file of many names comes back as many files."""
        sizes = {source: source.stat().st_blocks * _BLOCK for source in {*wanted.values()}}
        again = sum(sizes[source] for source in wanted.values()) - sum(sizes.values())
        if self._room is not None and again > self._room:
            raise SandboxError(
                f"the files of the workspace cannot be brought back: {again // _MIB:,} MiB of them are the same content under "
                f"other names, and workspace_mib is {self._room // _MIB}: begin a new run"
            )

    async def add(self, name: str, data: bytes) -> str:
        """See :meth:`codeact_team.StreamingCodeExecutor.add_file`."""
        added = await self._reached().add(name, data)
        self._added.add(added)
        return added

    def _reached(self) -> Files:
        if self._files is None:
            raise SandboxError("there is no workspace: its executor has not started, or was stopped")
        return self._files


def _kept(path: str, source: Path, is_executable: bool) -> Given:
    # a person may have led their runs elsewhere by a link
    source = source.resolve()
    return Given(path, str(source), stat.S_IFREG | (0o755 if is_executable else 0o644), source.stat().st_size)


async def _read(files: Files, path: str, size: int) -> bytes | None:
    """The content of a file; ``None`` if it cannot be read any more."""
    try:
        return b"".join([piece async for piece in files.read(path, size)])
    except OSError:
        return None
