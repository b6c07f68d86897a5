"""The files of a workspace that is in a container only: programs in it read and write them."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import stat
import tarfile
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Sequence
from itertools import islice
from typing import Protocol

from codeact_team.aio import to_the_end
from codeact_team.errors import SandboxError
from codeact_team.files.base import Files
from codeact_team.files.directories import numbered
from codeact_team.files.given import Given
from codeact_team.files.snapshots import MAX_SEEN, Seen, Snapshot, is_of_the_work
from codeact_team.sandboxes.archives import END, file_member, head
from codeact_team.sandboxes.base import Process

_MAX_LIST = 32 << 20
"""Bytes of a list."""
_MAX_ANSWER = 4096
_MAX_NAMES = 1000
"""Numbers that are tried for a name that is taken, and names that one program gets."""
_SILENCE = 30.0
"""Seconds without a byte after which a program is given up: hostile code may have stopped it."""

_DONE = b"\0"
"""What a program of ours writes when it has done all."""
_PUT = "tar -xof - && printf '\\0'"
_LIST = "find . -xdev ! -type d -exec stat -c '%s|%f|%i %y %z|%n' {} + 2>/dev/null; printf '\\0'"
_REMOVE = "rm -f -- \"$@\" && printf '\\0'"
_READ = '[ -f "$1" ] && ! [ -L "$1" ] && exec cat -- "$1"'
_ADD = """set -C
if [ -e "$1" ] || [ -L "$1" ] || ! true >"$1"; then cat >/dev/null; printf taken
else set +C; cat >"$1" && printf '\\0'; fi 2>/dev/null"""
_LINE = re.compile(r"(\d{1,20})\|([0-9a-f]{1,8})\|(.*?)\|\./(.*)")


class Spawn(Protocol):
    """Starts a program in the container, beside what runs there."""

    def __call__(self, argv: Sequence[str], /) -> Awaitable[Process]: ...


class ContainerFiles(Files):
    """The files of a workspace in a container.

    Args:
        spawn: Starts a program there.
        is_empty: Whether nothing is there at first.
    """

    outlasts_sandbox = False

    def __init__(self, spawn: Spawn, *, is_empty: bool) -> None:
        self._spawn = spawn
        self.is_empty = is_empty

    async def check(self, given: Sequence[Given]) -> None:
        """There is nothing yet that could be in the way."""

    async def put(self, given: Sequence[Given], *, replace: bool = False) -> None:
        # what is extracted replaces what is there, and there is nothing else yet where that is not wanted
        if not given:
            return
        pieces = _archive(given)
        try:
            said = await self._run(_PUT, [], lambda: to_the_end(asyncio.to_thread(next, pieces, b"")))
        except OSError as error:
            raise SandboxError(f"data: it cannot be copied into the container: {error.strerror}") from error
        finally:
            pieces.close()
        if said != _DONE:
            why = said.decode(errors="replace").strip("\0\n") or "its program was killed"
            raise SandboxError(f"data: it cannot be copied into the container: {why}")

    async def remove(self, paths: Sequence[str]) -> None:
        for start in range(0, len(paths), _MAX_NAMES):
            names = [f"./{path}" for path in paths[start : start + _MAX_NAMES]]
            if await self._run(_REMOVE, names, _nothing) != _DONE:
                raise SandboxError("files cannot be removed from the container")

    async def snapshot(self) -> Snapshot:
        said = await self._run(_LIST, [], _nothing, limit=_MAX_LIST)
        if not said.endswith(_DONE):
            raise SandboxError("the files in the container cannot be listed")
        return _parsed(os.fsdecode(said[:-1]))

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
            raise OSError(errno.EIO, "it could not be read to its end")

    async def add(self, name: str, data: bytes) -> str:
        for candidate in islice(numbered(name), _MAX_NAMES):
            pieces = iter([data])
            said = await self._run(_ADD, [f"./{candidate}"], lambda pieces=pieces: _given(next(pieces, b"")))
            if said == _DONE:
                return candidate
            if said != b"taken":
                break
        raise OSError(errno.EIO, "the container does not take it")

    async def _run(
        self,
        script: str,
        arguments: Sequence[str],
        give: Callable[[], Awaitable[bytes]],
        *,
        limit: int = _MAX_ANSWER,
    ) -> bytes:
        """Give a program its input, and return what it says, at most so many bytes."""
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
                f"a program in the container does nothing for {_SILENCE:g} s: its files are out of reach"
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
    """What is given as a tar archive, piece by piece. Blocks."""
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


def _parsed(text: str) -> Snapshot:
    """The list of files that a program in the container has written; hostile code may have written it."""
    snapshot = Snapshot()
    found: list[tuple[str, Seen, int]] = []
    for line in text.split("\n")[:-1]:
        if (match := _LINE.fullmatch(line)) is None:
            # the name before has more than one line
            if found:
                path, seen, mode = found.pop()
                found.append((f"{path}\n{line}", seen, mode))
        elif len(found) == MAX_SEEN:
            snapshot.is_whole = False
            break
        else:
            mode = int(match[2], 16)
            found.append((match[4], Seen(int(match[1]), match[3], bool(mode & stat.S_IXUSR)), mode))
    for path, seen, mode in found:
        if not all(map(is_of_the_work, _prefixes(path))) or {"", ".", ".."} & {*path.split("/")}:
            continue
        if stat.S_ISREG(mode):
            snapshot.files[path] = seen
        else:
            snapshot.others += 1
    return snapshot


def _prefixes(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:length]) for length in range(1, len(parts) + 1)]
