"""Copies of what is in a workspace, in a directory of the person's."""

from __future__ import annotations

import asyncio
import errno
import os
import unicodedata
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing

from codeact_team.core.aio import to_the_end
from codeact_team.core.atomic_files import Directory, numbered
from codeact_team.core.executor_interface import ChangedFile, SavedFile
from codeact_team.core.files import opened
from codeact_team.core.visibility import all_visible
from codeact_team.errors import SandboxError
from codeact_team.executors.files.base import Files

_OF_THE_NAME = (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ)
"""What is said of a file that has no place in the directory, whatever a person does."""
_LINE_BREAKS = str.maketrans({"\r": "\u240d", "\n": "\u2424", "\t": "\u2409"})


def readable(path: str) -> str:
    """A path that hostile code has made up, as a person can read it, and copies are called."""
    return all_visible(path.translate(_LINE_BREAKS))


class CopyNames:
    """The names of copies, of which no two read alike: file systems may tell neither case nor composed letters apart."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._taken: set[str] = set()
        self._numbered: dict[str, Iterator[str]] = {}
        """By what reads alike, the names that are left."""

    def give(self, paths: Iterable[str]) -> None:
        """Find the names of the copies of files. Blocks."""
        for path in paths:
            self.of(path)

    def of(self, path: str) -> str:
        """The path of the copy of a file; always the same. Blocks, unless it is known."""
        if (name := self._names.get(path)) is None:
            wanted = readable(path)
            above, _, last = wanted.rpartition("/")
            left = self._numbered.setdefault(_read(wanted), numbered(last))
            candidates = (os.path.join(above, one) for one in left)
            name = next(one for one in candidates if _read(one) not in self._taken)
            self._names[path] = name
            self._taken.add(_read(name))
        return name


def _read(path: str) -> str:
    """What is the same for paths that read alike."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", path).casefold())


async def save(
    files: Files,
    wanted: Sequence[ChangedFile],
    directory: str | os.PathLike[str] | int,
    names: CopyNames,
    *,
    room: int | None,
) -> Sequence[SavedFile]:
    """Copy files of a workspace; see :meth:`codeact_team.StreamingCodeExecutor.save_files`.

    Args:
        files: The workspace.
        wanted: Which.
        directory: Where to.
        names: What copies of files there are called.
        room: How many bytes all together may have, as a file may claim any size; ``None`` for no limit.

    Raises:
        OSError: If the directory cannot be opened.
    """
    saved: list[SavedFile] = []
    # of many long names it takes its time
    await to_the_end(asyncio.to_thread(names.give, [file.path for file in wanted]))
    with opened(directory) as top:
        target = Directory(top)
        for file in wanted:
            if any(part.startswith(".") for part in file.path.split("/")):
                # programs of the person's look for such files, and do what these say
                saved.append(SavedFile(file.path, None, "it is hidden"))
                continue
            if room is not None and file.size > room:
                saved.append(
                    SavedFile(file.path, None, f"it has {file.size:,} bytes, and there is no room for them")
                )
                continue
            try:
                name = await _save(files, file, target, names.of(file.path))
            except (OSError, SandboxError) as error:
                why = _reason(error)
                is_due = isinstance(error, OSError) and error.errno not in _OF_THE_NAME
                saved.append(SavedFile(file.path, None, why, is_due=is_due))
                continue
            room = None if room is None else room - file.size
            saved.append(SavedFile(file.path, name))
    return saved


async def _save(files: Files, file: ChangedFile, target: Directory, path: str) -> str:
    above, _, _ = path.rpartition("/")
    target.make(above)
    left = file.size
    with target.new_file(path) as new:
        async with aclosing(_read_pieces(files, file)) as pieces:
            async for piece in pieces:
                left -= len(piece)
                await to_the_end(asyncio.to_thread(new.write, piece))
        if left:
            raise SandboxError("it became shorter meanwhile")
        name = await to_the_end(asyncio.to_thread(new.settle_beside))
    return os.path.join(above, name)


async def _read_pieces(files: Files, file: ChangedFile) -> AsyncGenerator[bytes]:
    """What a file holds.

    Raises:
        SandboxError: If it cannot be read: what the directory for copies says is something else.
    """
    try:
        async with aclosing(files.read(file.path, file.size)) as pieces:
            async for piece in pieces:
                yield piece
    except OSError as error:
        raise SandboxError(_reason(error)) from error


def _reason(error: Exception) -> str:
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)
