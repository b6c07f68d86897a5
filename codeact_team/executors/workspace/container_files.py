"""The files of a workspace that is only in a container: programs there read and write them."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import stat
import tarfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Sequence
from itertools import islice

from codeact_team.core.aio import to_the_end
from codeact_team.errors import SandboxError
from codeact_team.executors.workspace.files import (
    MAX_DEPTH,
    MAX_SEEN,
    PYTHON_CACHE,
    FileState,
    Snapshot,
    Taking,
    WorkspaceFiles,
    is_ours,
)
from codeact_team.executors.workspace.given import Given
from codeact_team.files.atomic import numbered
from codeact_team.sandbox.archives import END, file_member, head
from codeact_team.sandbox.base import Process

_MAX_LIST = 32 << 20
"""Bytes of a listing."""
_MAX_PATH = 32 << 10
"""Characters: more than :data:`MAX_DEPTH` directories with names of 255 bytes have."""
_MAX_LINE = 2 * _MAX_PATH
"""Bytes of a line that are read."""
_MAX_ANSWER = 4096
_MAX_NAMES = 1000
"""Numbers to try for a name that is taken, and names to give to one program."""
_SILENCE = 30.0
"""Seconds without a byte until we give a program up: hostile code may have stopped it."""

_DONE = b"\0"
"""Written by a program of ours when it has done all its work."""
_PUT = "tar -xof - && printf '\\0'"
_LIST = "find . -xdev ! -type d -exec stat -c '%s|%f|%i %y %z|%n' {} + 2>/dev/null; printf '\\0'"
_REMOVE = "rm -f -- \"$@\" && printf '\\0'"
_READ = '[ -f "$1" ] && ! [ -L "$1" ] && exec cat -- "$1"'
_ADD = """set -C
if [ -e "$1" ] || [ -L "$1" ] || ! true >"$1"; then cat >/dev/null; printf taken
else set +C; cat >"$1" && printf '\\0'; fi 2>/dev/null"""
_LINE = re.compile(rb"(\d{1,20})\|([0-9a-f]{1,8})\|(.*?)\|\./(.*)")


class ContainerFiles(WorkspaceFiles):
    """The files of a workspace in a container. ``spawn`` starts a program there, outside the sandbox of the code."""

    outlasts_sandbox = False

    def __init__(self, spawn: Callable[[Sequence[str]], Awaitable[Process]], *, is_empty: bool) -> None:
        self._spawn = spawn
        self.is_empty = is_empty

    async def check(self, given: Sequence[Given]) -> None:
        """Nothing is there yet."""

    async def put(self, given: Sequence[Given], *, replace: bool = False) -> None:
        # tar replaces what is there; without `replace`, the workspace is empty
        if not given:
            return
        pieces = _archive(given)
        try:
            said = await self._run(_PUT, [], lambda: to_the_end(asyncio.to_thread(next, pieces, b"")))
        except OSError as error:
            raise SandboxError(
                f"data: the files cannot be copied into the container: {error.strerror}"
            ) from error
        finally:
            pieces.close()
        if said != _DONE:
            why = said.decode(errors="replace").strip("\0\n") or "its program was killed"
            raise SandboxError(f"data: the files cannot be copied into the container: {why}")

    async def remove(self, paths: Sequence[str]) -> None:
        for start in range(0, len(paths), _MAX_NAMES):
            names = [f"./{path}" for path in paths[start : start + _MAX_NAMES]]
            if await self._run(_REMOVE, names, _nothing) != _DONE:
                raise SandboxError("files cannot be removed from the container")

    async def snapshot(self, taking: Taking | None = None) -> Snapshot:
        said = await self._run(_LIST, [], _nothing, limit=_MAX_LIST)
        if not said.endswith(_DONE):
            raise SandboxError("the files in the container cannot be listed")
        snapshot = await asyncio.to_thread(_parsed, said[:-1])
        if taking is not None:
            files = snapshot.files.items()
            for path, state in await asyncio.to_thread(lambda: [one for one in files if taking.wants(*one)]):
                if (data := await self.read_whole(path, state.size)) is not None:
                    await to_the_end(asyncio.to_thread(taking.on_content, path, data))
        return snapshot

    async def read(self, path: str, size: int) -> AsyncGenerator[bytes]:
        process = await self._spawn(["/bin/sh", "-c", f"{_READ} 2>/dev/null", "read", f"./{path}"])
        try:
            await process.close_stdin()
            left = size
            while left and (data := await _next(process)):
                yield data[:left]
                left -= min(left, len(data))
        finally:
            await process.aclose()
        if left:
            raise OSError(errno.EIO, "it could not be read completely")

    async def add(self, name: str, data: bytes) -> str:
        for candidate in islice(numbered(name), _MAX_NAMES):
            pieces = iter([data])
            said = await self._run(_ADD, [f"./{candidate}"], lambda pieces=pieces: _given(next(pieces, b"")))
            if said == _DONE:
                return candidate
            if said != b"taken":
                break
        raise OSError(errno.EIO, "the container has not stored it")

    async def _run(
        self,
        script: str,
        arguments: Sequence[str],
        give: Callable[[], Awaitable[bytes]],
        *,
        limit: int = _MAX_ANSWER,
    ) -> bytes:
        """Run a program with an input, and return the first bytes of its output."""
        process = await self._spawn(["/bin/sh", "-c", script, "sh", *arguments])
        try:
            while piece := await give():
                async with asyncio.timeout(_SILENCE):
                    await process.write(piece)
            await process.close_stdin()
            said = bytearray()
            while (data := await _next(process)) and len(said) <= limit:
                said += data
            return bytes(said)
        except TimeoutError as error:
            raise SandboxError(
                f"a program in the container has done nothing for {_SILENCE:g} s: its files cannot be reached"
            ) from error
        finally:
            await process.aclose()


async def _next(process: Process) -> bytes:
    try:
        async with asyncio.timeout(_SILENCE):
            return await process.read()
    except TimeoutError as error:
        raise OSError(errno.ETIMEDOUT, "the container does not answer") from error


async def _nothing() -> bytes:
    return b""


async def _given(data: bytes) -> bytes:
    return data


def _archive(given: Sequence[Given]) -> Generator[bytes]:
    """The data as a tar archive, piece by piece. Blocks."""
    for one in given:
        entry = tarfile.TarInfo(one.path)
        entry.mode, entry.size = 0o644 | (one.mode & 0o100), one.size
        if one.target:
            entry.type, entry.linkname = tarfile.SYMTYPE, one.target
        elif not one.is_file:
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
        if one.is_file and one.size:
            with one.open() as source:
                yield from file_member(entry, source)
        else:
            yield head(entry)
    yield END


def _parsed(said: bytes) -> Snapshot:
    """The snapshot in a listing, which hostile code may have written. Linear time."""
    snapshot = Snapshot()
    for count, (size, mode, stamp, lines) in enumerate(_entries(said)):
        if count == MAX_SEEN:
            snapshot.is_whole = False
            break
        path = os.fsdecode(b"\n".join(lines))
        parts = path.split("/")
        if len(path) > _MAX_PATH or len(parts) > MAX_DEPTH + 1:
            snapshot.unseen += 1
        elif {"", ".", "..", PYTHON_CACHE} & {*parts} or is_ours(parts[0]):
            continue
        elif stat.S_ISREG(mode):
            snapshot.files[path] = FileState(size, stamp, bool(mode & stat.S_IXUSR))
        else:
            snapshot.others += 1
    return snapshot


def _entries(said: bytes) -> Iterator[tuple[int, int, str, list[bytes]]]:
    """Of each file the size, the mode, the stamp, and the lines of its path."""
    entry: tuple[int, int, str, list[bytes]] | None = None
    for line in _lines(said):
        if (match := _LINE.fullmatch(line)) is not None:
            if entry is not None:
                yield entry
            entry = int(match[1]), int(match[2], 16), match[3].decode(errors="replace"), [match[4]]
        elif entry is not None and len(entry[-1]) <= _MAX_PATH + 1:
            # its name has more than one line
            entry[-1].append(line)
    if entry is not None:
        yield entry


def _lines(said: bytes) -> Iterator[bytes]:
    # one by one: no other thread runs while all are split
    start = 0
    while (end := said.find(b"\n", start)) >= 0:
        yield said[start : min(end, start + _MAX_LINE)]
        start = end + 1
