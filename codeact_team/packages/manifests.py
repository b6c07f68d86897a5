"""Which files a layer has: to tell, at each start, whether it is still what was made."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

MAX_TOLD = 20


class File(NamedTuple):
    """A file as it was when its layer was made: size in bytes, time of its last change in ns, digest of its content."""

    size: int
    changed: int
    digest: str


Manifest = dict[str, File]
"""Every file by its path within the layer."""


def make_manifest(directory: Path) -> Manifest:
    """The manifest of a directory of files and directories, in the order of the paths. Reads every file."""
    found: Manifest = {}
    for entry in files_in(str(directory)):
        status = entry.stat(follow_symlinks=False)
        path = os.path.relpath(entry.path, directory)
        found[path] = File(status.st_size, status.st_mtime_ns, _digest(entry.path))
    return dict(sorted(found.items()))


def stamp_of(directory: Path) -> str:
    """What differs as soon as a file of a directory is another one, or has another size or time. Reads none.

    It is for a quick look: what has another stamp may still have the same content.
    """
    above = len(f"{directory}/")
    seen: list[str] = []
    for entry in files_in(str(directory)):
        status = entry.stat(follow_symlinks=False)
        seen.append(f"{entry.path[above:]}\0{status.st_size} {status.st_mtime_ns} {status.st_mode}")
    seen.sort()
    return hashlib.sha256("\n".join(seen).encode(errors="surrogateescape")).hexdigest()


def digest_of(manifest: Manifest) -> str:
    """What names the content: the same for the same files, whenever and wherever they were made."""
    # two compilations of one module may differ
    content = "".join(
        f"{path}\0{file.digest}\n" for path, file in manifest.items() if not path.endswith(".pyc")
    )
    return hashlib.sha256(content.encode(errors="surrogateescape")).hexdigest()


def differences(directory: Path, manifest: Manifest, *, thorough: bool) -> list[str]:
    """The paths at which a directory is not what its manifest says, at most a few of them.

    Args:
        directory: The directory.
        manifest: What was there.
        thorough: Whether every file is read, and not only those of another size or time.
    """
    left = dict(manifest)
    different: list[str] = []
    for entry in files_in(str(directory)):
        path = os.path.relpath(entry.path, directory)
        known = left.pop(path, None)
        if known is None or not _is(entry, File(*known), thorough=thorough):
            different.append(path)
        if len(different) >= MAX_TOLD:
            return different
    return [*different, *left][:MAX_TOLD]


def _is(entry: os.DirEntry[str], known: File, *, thorough: bool) -> bool:
    status = entry.stat(follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode) or status.st_size != known.size:
        return False
    looks_the_same = status.st_mtime_ns == known.changed
    return (looks_the_same and not thorough) or _digest(entry.path) == known.digest


def files_in(directory: str) -> Iterator[os.DirEntry[str]]:
    """Everything below a directory but directories; follows no links."""
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from files_in(entry.path)
            else:
                yield entry


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
