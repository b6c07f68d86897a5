"""Runs and their files, carried between a driver and a worker that do not share the storage where they are kept.

A run travels in pieces of a few kilobytes, as plain data. Where it arrives it is put together aside, and takes its place as a
whole. Names of files come from hostile code: nothing is written but below the directory of its run, and no link is followed.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from codeact_team.errors import JournalError
from codeact_team.files.directories import Directory, below, opened
from codeact_team.system.named_paths import made_named, remove_named
from codeact_team.system.regular_files import open_regular

PARTS = ("runs", "files")
"""Directories of a batch that have one for each job."""
_ARRIVING = "arriving"
_LEAVING = "leaving"
_PIECE = 48 << 10
MAX_CARRIED = 4 << 30
"""Bytes of one job: what is above that is no longer the result of a task, and fills disks."""


def pieces_of(directory: Path, job: str) -> Iterator[dict[str, Any]]:
    """What there is of a job, as messages. Blocks.

    Args:
        directory: That of the batch.
        job: The name of the job.

    Raises:
        JournalError: If it cannot be read, or is too large.
    """
    left = MAX_CARRIED
    for part in PARTS:
        top = directory / part / job
        for path in _files_below(top):
            name = os.path.relpath(path, top)
            try:
                with open(open_regular(path), "rb") as file:
                    begins = True
                    while (data := file.read(_PIECE)) or begins:
                        left -= len(data)
                        if left < 0:
                            raise JournalError(
                                f"{top} is larger than the {MAX_CARRIED >> 30} GiB that are carried"
                            )
                        text = base64.b64encode(data).decode()
                        yield {"carried": job, "part": part, "path": name, "begins": begins, "data": text}
                        begins = False
            except OSError as error:
                raise JournalError(f"{path} cannot be carried: {error.strerror}") from error


def remove(directory: Path, job: str) -> None:
    """Remove what there is of a job. Blocks."""
    for part in PARTS:
        with suppress(FileNotFoundError):
            remove_named(directory / part / job)


def _files_below(top: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(top):
        for name in sorted(names):
            path = Path(folder, name)
            if not path.is_symlink():
                yield path


class Arrivals:
    """Takes what is carried. All of it blocks.

    Args:
        directory: That of the batch.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._left: dict[str, int] = {}
        """How many bytes may still come of each job that has begun to arrive."""

    def take(self, message: dict[str, Any]) -> None:
        """Take a message of :func:`pieces_of`.

        Raises:
            JournalError: If it cannot be kept, or is none of those.
        """
        job, part, path = str(message["carried"]), message["part"], str(message["path"])
        if part not in PARTS:
            raise JournalError(f"what is carried of {job} is no run: {part!r}")
        try:
            top = self._directory / _ARRIVING / job
            if job not in self._left:
                self._left[job] = MAX_CARRIED
                with suppress(FileNotFoundError):
                    remove_named(top)
            with made_named(top / part, 0o700):
                pass
            data = base64.b64decode(message["data"])
            self._left[job] -= len(data)
            if self._left[job] < 0:
                raise JournalError(f"more is carried of {job} than the {MAX_CARRIED >> 30} GiB that may be")
            _write(top / part, path, data, begins=message["begins"])
        except OSError as error:
            raise JournalError(f"what is carried of {job} cannot be kept: {error.strerror}") from error

    def give_up(self) -> None:
        """Nothing more comes."""
        for job in self._left:
            with suppress(OSError):
                remove_named(self._directory / _ARRIVING / job)
        self._left.clear()

    def settle(self, job: str) -> None:
        """All of a job has come: it takes the place of what was there of it.

        Raises:
            JournalError: If it cannot.
        """
        if self._left.pop(job, None) is None:
            return
        top, aside = self._directory / _ARRIVING / job, self._directory / _LEAVING / job
        try:
            for part in PARTS:
                goal = self._directory / part / job
                with suppress(FileNotFoundError):
                    remove_named(aside)
                with made_named(aside.parent, 0o700):
                    pass
                with suppress(FileNotFoundError):
                    goal.rename(aside)
                with suppress(FileNotFoundError):
                    (top / part).rename(goal)
                with suppress(FileNotFoundError):
                    remove_named(aside)
            remove_named(top)
            for empty in (top.parent, aside.parent):
                with suppress(OSError):
                    empty.rmdir()
        except OSError as error:
            raise JournalError(f"what was carried of {job} cannot be kept: {error.strerror}") from error


def _write(top: Path, path: str, data: bytes, *, begins: bool) -> None:
    above, _, name = path.rpartition("/")
    flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    flags |= os.O_CREAT | os.O_EXCL if begins else os.O_APPEND
    with opened(top) as directory:
        if begins:
            Directory(directory).make(above)
        with below(directory, above) as folder:
            # what is above is for its owner only
            with open(os.open(name, flags, 0o666, dir_fd=folder), "wb") as file:
                file.write(data)
