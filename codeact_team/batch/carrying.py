"""Carries the files of a run between machines that share no storage, as a tar archive in small chunks.

The names in an archive come from hostile code. It is unpacked in a new directory that is for its owner only, without links, so
that no name leads out of it. The result replaces the previous files of the run as a whole.
"""

from __future__ import annotations

import base64
import os
import shutil
import stat
import tarfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from codeact_team.errors import JournalError
from codeact_team.files.atomic import Directory
from codeact_team.files.opening import below, made_named, move_named, open_regular, opened, remove_named
from codeact_team.files.trees import files_below
from codeact_team.sandbox.archives import END, file_member

PARTS = ("runs", "files")
"""The directories of a batch that have a subdirectory for each job."""
MAX_CARRIED = 4 << 30
"""Bytes of the archive of one job. More is no longer the result of a task, and fills disks."""
_ARRIVING = "arriving"
_CHUNK = 48 << 10
"""Bytes. In base64, Ray sends up to 100 KiB without its object store."""


def packed(directory: Path, job: str) -> Iterator[str]:
    """Pack the files of a job in the directory of a batch into an archive, and yield it in chunks, in base64. Blocks.

    Raises:
        JournalError: If a file cannot be read, or they are too large together.
    """
    waiting, left = bytearray(), MAX_CARRIED
    for piece in _archive(directory, job):
        if (left := left - len(piece)) < 0:
            raise JournalError(
                f"the files of {job} are larger than the {MAX_CARRIED >> 30} GiB that can be carried"
            )
        waiting += piece
        while len(waiting) >= _CHUNK:
            yield base64.b64encode(waiting[:_CHUNK]).decode()
            del waiting[:_CHUNK]
    yield base64.b64encode(waiting).decode()


def _archive(directory: Path, job: str) -> Iterator[bytes]:
    for part in PARTS:
        top = directory / part / job
        for path in _files_below(top):
            try:
                with open(open_regular(path), "rb") as file:
                    member = tarfile.TarInfo(os.path.join(part, os.path.relpath(path, top)))
                    member.size = os.fstat(file.fileno()).st_size
                    yield from file_member(member, file)
            except OSError as error:
                raise JournalError(f"{path} cannot be carried: {error.strerror}") from error
    yield END


def _files_below(top: Path) -> list[Path]:
    found: list[Path] = []
    try:
        with suppress(FileNotFoundError), opened(top) as directory:
            for inner, name, status in files_below(directory):
                if not stat.S_ISLNK(status.st_mode):
                    found.append(Path(top, *inner.names, name))
    except OSError as error:
        raise JournalError(f"{top} cannot be carried: {error.strerror}") from error
    return sorted(found)


def remove_job(directory: Path, job: str) -> None:
    """Remove the files of a job. Blocks."""
    for part in PARTS:
        with suppress(FileNotFoundError):
            remove_named(directory / part / job)


class Arrivals:
    """Receives archives of jobs in the directory of a batch. All methods block.

    Raises:
        JournalError: If an archive is damaged or too large, or cannot be written.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._archives: dict[str, BinaryIO] = {}

    def add(self, job: str, chunk: str) -> None:
        """Add the next chunk of :func:`packed` to the archive of a job."""
        try:
            if (archive := self._archives.get(job)) is None:
                archive = self._archives[job] = self._begin(job)
            archive.write(base64.b64decode(chunk))
            if archive.tell() > MAX_CARRIED:
                raise JournalError(
                    f"the files of {job} are larger than the {MAX_CARRIED >> 30} GiB that can be carried"
                )
        except OSError as error:
            raise JournalError(f"the carried files of {job} cannot be stored: {error.strerror}") from error

    def _begin(self, job: str) -> BinaryIO:
        top = self._directory / _ARRIVING / job
        with suppress(FileNotFoundError):
            remove_named(top)
        with made_named(top, 0o700) as directory:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            return open(os.open("archive", flags, 0o600, dir_fd=directory), "r+b")

    def settle(self, job: str) -> None:
        """Unpack the complete archive of a job, if one has come, and replace the previous files of the job by it."""
        if (archive := self._archives.pop(job, None)) is None:
            return
        top = self._directory / _ARRIVING / job
        try:
            with archive:
                _unpack(archive, top)
            for part in PARTS:
                goal = self._directory / part / job
                with suppress(FileNotFoundError):
                    move_named(goal, top / f"previous-{part}")
                with suppress(FileNotFoundError):
                    move_named(top / part, goal)
            _remove(top)
        except (OSError, tarfile.TarError) as error:
            raise JournalError(f"the carried files of {job} cannot be stored: {error}") from error

    def discard(self) -> None:
        """Drop the incomplete archives: no more chunks will come."""
        archives, self._archives = self._archives, {}
        for job, archive in archives.items():
            archive.close()
            with suppress(OSError):
                _remove(self._directory / _ARRIVING / job)


def _remove(arrived: Path) -> None:
    remove_named(arrived)
    with suppress(OSError):
        # others may still arrive
        arrived.parent.rmdir()


def _unpack(archive: BinaryIO, top: Path) -> None:
    """Unpack an archive in the directory ``top``, if it has nothing but files, with names that do not lead out of it."""
    archive.seek(0)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with opened(top) as directory, tarfile.open(fileobj=archive, mode="r:", encoding="utf-8") as members:
        for member in members:
            content = members.extractfile(member) if member.isreg() and not member.issparse() else None
            if content is None:
                raise tarfile.TarError(f"{member.name!r} is not a regular file")
            if member.name.startswith("/"):
                raise tarfile.TarError(f"{member.name!r} is not a path below a directory")
            above, _, name = member.name.rpartition("/")
            Directory(directory).make(above)
            with below(directory, above) as folder:
                # the directory above all is for its owner only
                with open(os.open(name, flags, 0o666, dir_fd=folder), "wb") as file:
                    shutil.copyfileobj(content, file)
