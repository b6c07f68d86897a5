"""The files of a workspace that is a directory of this machine."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import threading
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TypeVar

from codeact_team.core.aio import to_the_end
from codeact_team.core.atomic_files import Directory, NewFile, Taken, is_unchanged, same_content
from codeact_team.core.files import below, opened, opened_file
from codeact_team.errors import SandboxError, SettingError
from codeact_team.executors.files.base import Files, Snapshot, take
from codeact_team.executors.files.given import Given

T = TypeVar("T")

_CHUNK = 1 << 20
_MODE = 0o644


class HostFiles(Files):
    """The files of a directory.

    Args:
        directory: It.
        name: What a person calls it.
    """

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

    async def remove(self, paths: Sequence[str]) -> None:
        try:
            await to_the_end(asyncio.to_thread(self._remove, paths))
        except OSError as error:
            raise SandboxError(
                f"{error.filename} cannot be removed from the workspace {self._name}: {error.strerror}"
            ) from error

    async def snapshot(self) -> Snapshot:
        try:
            return await asyncio.to_thread(self._snapshot)
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
                data = await _read(file, min(size, _CHUNK)) if size else b""

    async def read_all(self, wanted: Mapping[str, int], take: Callable[[str, bytes], None]) -> None:
        # in one thread: to change to one and back takes longer than to read a short file
        await _in_thread(lambda stop: self._read_all(wanted, take, stop))

    async def add(self, name: str, data: bytes) -> str:
        return await to_the_end(asyncio.to_thread(self._add, name, data))

    def _begin(self, path: str, size: int, stack: ExitStack) -> tuple[int, bytes]:
        """A file, and how it begins."""
        file = stack.enter_context(opened_file(stack.enter_context(opened(self._directory)), path))
        return file, os.read(file, min(size, _CHUNK))

    def _read_all(
        self, wanted: Mapping[str, int], take: Callable[[str, bytes], None], stop: threading.Event
    ) -> None:
        with opened(self._directory) as top:
            for path, size in wanted.items():
                _raise_if(stop)
                try:
                    with opened_file(top, path) as file:
                        data = _read_whole(file, size)
                except OSError:
                    continue
                take(path, data)

    def _snapshot(self) -> Snapshot:
        with opened(self._directory) as top:
            return take(top)

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

    def _taken(self, one: Given) -> SettingError:
        return SettingError(
            f"data: {one.source} would be {one.path} in the workspace {self._name}, where there is another one of that "
            "name, which is not overwritten, as you or the code may need it: move it away, or rename one of them"
        )


async def _read(file: int, size: int) -> bytes:
    # to the end: nobody may close it meanwhile
    return await to_the_end(asyncio.to_thread(os.read, file, size))


def _read_whole(file: int, size: int) -> bytes:
    pieces: list[bytes] = []
    while size and (data := os.read(file, min(size, _CHUNK))):
        pieces.append(data)
        size -= len(data)
    return b"".join(pieces)


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
    """Copy as much as there was when it was looked at; what grows meanwhile would have no end."""
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
    """Do work in a thread, which is told to stop when whoever awaits it is cancelled."""
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
