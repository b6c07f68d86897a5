"""How much the workspace grows on the host: the kernel has no quota for a directory.

Files are counted when the sandbox starts, and again whenever code has run for a while.
"""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Sequence
from pathlib import Path

from codeact_team.aio import to_the_end
from codeact_team.errors import SandboxError
from codeact_team.sessions.protocol import BRANCHES
from codeact_team.system.named_paths import open_named
from codeact_team.system.trees import DIRECTORY

_INTERVAL = 1.0
"""Seconds that code runs between two looks, or more:"""
_PAUSE_PER_LOOK = 20
"""seconds between two looks for each second that one takes."""
_SHORT_INTERVAL = 0.1
"""Seconds between two looks while there is too much."""
_BLOCK = 512
"""Bytes, whatever the file system."""
_MIB = 1 << 20
_SLACK = 1 * _MIB, 16
"""Bytes and files that code may add while there is too much: what removes something may need some itself."""


class Growth:
    """How much has been added to directories, and whether that is more than the limits; ``None`` is none."""

    def __init__(self, mib: int | None, files: int | None) -> None:
        self._mib = mib
        self._files = files
        self._directories: Sequence[Path] = ()
        self._before: _Usage | None = None
        self._least: tuple[int, int] | None = None
        """The least bytes and files there were since there is too much."""
        self.pause = _INTERVAL
        """Seconds that code may run until the next look."""

    async def begin(self, directories: Sequence[Path]) -> None:
        """Count from what is there now, unless that has been done before.

        Raises:
            SandboxError: If what is in them cannot be counted.
        """
        self._directories = directories
        if self._before is not None or (self._mib is None and self._files is None):
            return
        try:
            self._before = await to_the_end(asyncio.to_thread(_count, directories))
        except OSError as error:
            raise SandboxError(
                f"what is in {', '.join(map(str, directories))} cannot be counted: {error}; set `workspace_mib` and "
                "`workspace_files` to null to go on without a limit"
            ) from error

    async def look(self) -> str | None:
        """The field whose limit is exceeded, with its value. Told again only when more has been added since."""
        return await to_the_end(asyncio.to_thread(self._look))

    async def exceeded_by_copies(self, home: str, copies: int, *, replaced: str | None = None) -> str | None:
        """The field whose limit copies of a directory would exceed, with its value.

        Args:
            home: Its path below the workspace, or nothing for the workspace itself; copies that are in it are not copied.
            copies: How many.
            replaced: A directory whose content is removed then, as ``home``; ``None`` if there is none.
        """
        return await to_the_end(asyncio.to_thread(self._exceeded_by_copies, home, copies, replaced))

    def _exceeded_by_copies(self, home: str, copies: int, replaced: str | None) -> str | None:
        if (before := self._before) is None or not self._directories:
            return None
        try:
            now, part, gone = self._counted(before), _Usage(), _Usage()
            part.add(self._directories[0] / home, BRANCHES)
            if replaced is not None:
                gone.add(self._directories[0] / replaced, BRANCHES)
        except OSError as error:
            return self._uncountable(error)
        now.size += copies * part.size - gone.size_once
        now.files += copies * part.files - gone.files_once
        return self._exceeded(before, now)

    def _look(self) -> str | None:
        if (before := self._before) is None:
            return None
        began = time.monotonic()
        try:
            now = self._counted(before)
        except OSError as error:
            self.pause = _SHORT_INTERVAL
            return self._uncountable(error)
        exceeded = self._exceeded(before, now)
        self.pause = max(
            _SHORT_INTERVAL if exceeded else _INTERVAL, _PAUSE_PER_LOOK * (time.monotonic() - began)
        )
        return exceeded if self._is_news(exceeded, now) else None

    def _counted(self, before: _Usage) -> _Usage:
        now = _count(self._directories)
        if now.closed - before.closed:
            raise PermissionError("a directory was made that cannot be read")
        return now

    def _uncountable(self, error: OSError) -> str:
        return f"workspace_mib: {self._mib}, and what there is cannot be counted: {error}"

    def _exceeded(self, before: _Usage, now: _Usage) -> str | None:
        if self._mib is not None and now.size - before.size > self._mib * _MIB:
            return f"workspace_mib: {self._mib}"
        if self._files is not None and now.files - before.files > self._files:
            return f"workspace_files: {self._files}"
        return None

    def _is_news(self, exceeded: str | None, now: _Usage) -> bool:
        least, self._least = self._least, None if exceeded is None else (now.size, now.files)
        if least is None:
            return True
        size, files = least
        more_size, more_files = _SLACK
        if now.size > size + more_size or now.files > files + more_files:
            return True
        if exceeded is not None:
            self._least = min(size, now.size), min(files, now.files)
        return False


def _count(directories: Sequence[Path]) -> _Usage:
    usage = _Usage()
    for directory in directories:
        usage.add(directory)
    return usage


class _Usage:
    """What is in directories that hostile code may change meanwhile.

    Follows no links, opens nothing but directories, and does not leave their file systems.

    Attributes:
        size: Bytes of the disk.
        files: How many files of all kinds.
        size_once: The bytes, without files that may have names elsewhere, too.
        files_once: How many files these are.
        closed: Directories of other users that cannot be read.
    """

    def __init__(self) -> None:
        self.size = 0
        self.files = 0
        self.size_once = 0
        self.files_once = 0
        self.closed: set[tuple[int, int]] = set()
        self._linked: set[tuple[int, int]] = set()

    def add(self, directory: Path, leave_out: str = "") -> None:
        """Count what is in a directory.

        Args:
            directory: It.
            leave_out: How the paths below it begin of what does not count; nothing if all of it does.
        """
        try:
            top = open_named(directory, DIRECTORY)
        except FileNotFoundError:
            return
        current, device = top, os.fstat(top).st_dev
        try:
            # one descriptor, however many directories are inside one another: of each, what is still to be seen there
            levels = [(_identity(current), self._add_entries(current, device, leave_out), leave_out)]
            while levels:
                _, below, left_out = levels[-1]
                if below:
                    name = below.pop()
                    if (inner := self._open(name, current)) is not None:
                        os.close(current)
                        current = inner
                        left_out = _below(name, left_out)
                        entries = self._add_entries(current, device, left_out)
                        levels.append((_identity(current), entries, left_out))
                    continue
                levels.pop()
                if levels:
                    above = os.open("..", DIRECTORY, dir_fd=current)
                    os.close(current)
                    current = above
                    if _identity(current) != levels[-1][0]:
                        raise OSError("a directory was moved meanwhile")
        finally:
            os.close(current)

    def _open(self, name: str, above: int) -> int | None:
        try:
            return os.open(name, DIRECTORY, dir_fd=above)
        except FileNotFoundError:
            return None
        except PermissionError:
            status = os.stat(name, dir_fd=above, follow_symlinks=False)
            if status.st_uid == os.geteuid():
                raise
            self.closed.add((status.st_dev, status.st_ino))
            return None

    def _add_entries(self, directory: int, device: int, leave_out: str) -> list[str]:
        """Count the entries of a directory. Returns the names of the directories among them."""
        below: list[str] = []
        with os.scandir(directory) as entries:
            for entry in entries:
                if leave_out and entry.name.startswith(leave_out):
                    continue
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if stat.S_ISDIR(status.st_mode):
                    if status.st_dev == device:
                        below.append(entry.name)
                elif status.st_nlink > 1:
                    identity = status.st_dev, status.st_ino
                    if identity in self._linked:
                        continue
                    self._linked.add(identity)
                else:
                    self.size_once += status.st_blocks * _BLOCK
                    self.files_once += 1
                self.size += status.st_blocks * _BLOCK
                self.files += 1
        return below


def _below(name: str, leave_out: str) -> str:
    """How the paths begin of what does not count, below the directory with this name."""
    above = f"{name}/"
    return leave_out.removeprefix(above) if leave_out.startswith(above) else ""


def _identity(directory: int) -> tuple[int, int]:
    status = os.fstat(directory)
    return status.st_dev, status.st_ino
