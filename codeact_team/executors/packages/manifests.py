"""Manifests: what is in a directory of packages, by which a change is noticed."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from codeact_team.files import trees

_MAX_TOLD = 20


class File(NamedTuple):
    """A file of a directory of packages.

    Attributes:
        size: In bytes.
        changed: Time of its last change in ns.
        digest: Of its content.
        wheel: The key of the wheel that has brought it, or whose module was compiled to it.
    """

    size: int
    changed: int
    digest: str
    wheel: str = ""


Manifest = dict[str, File]
"""The files by their paths within the directory."""


def make_manifest(directory: Path) -> Manifest:
    """Make the manifest of a directory, in the order of the paths. Reads every file."""
    found = {path: file_at(directory / path) for path, _ in files_in(directory)}
    return dict(sorted(found.items()))


def file_at(path: Path, wheel: str = "") -> File:
    """What a manifest says of a file. Reads it."""
    status = path.lstat()
    return File(status.st_size, status.st_mtime_ns, _digest(path), wheel)


def read_manifest(file: Path) -> Manifest:
    """Read a manifest that is kept as JSON. Raises a ``ValueError`` if it is none."""
    return {path: File(*known) for path, known in json.loads(file.read_bytes()).items()}


def stamp_of(directory: Path) -> str:
    """A digest of the paths, sizes, times and permissions of the files in a directory. Reads no file.

    Directories with different stamps may still have the same content.
    """
    seen = [
        f"{path}\0{status.st_size} {status.st_mtime_ns} {status.st_mode}"
        for path, status in files_in(directory)
    ]
    seen.sort()
    return hashlib.sha256("\n".join(seen).encode(errors="surrogateescape")).hexdigest()


def digest_of(manifest: Manifest) -> str:
    """A digest of the wheels, which is the same whenever and wherever a Python from one origin has compiled them."""
    # two compilations of one module may differ
    content = "".join(
        f"{path}\0{file.digest} {file.wheel}\n"
        for path, file in manifest.items()
        if not path.endswith(".pyc")
    )
    return hashlib.sha256(content.encode(errors="surrogateescape")).hexdigest()


def differences(directory: Path, manifest: Manifest, *, thorough: bool) -> list[str]:
    """The first paths at which a directory differs from its manifest. If ``thorough``, every file is read."""
    left = dict(manifest)
    different: list[str] = []
    for path, status in files_in(directory):
        known = left.pop(path, None)
        if known is None or not is_still(directory / path, status, known, thorough=thorough):
            different.append(path)
        if len(different) >= _MAX_TOLD:
            return different
    return [*different, *left][:_MAX_TOLD]


def is_still(path: Path, status: os.stat_result, known: File, *, thorough: bool) -> bool:
    """Whether a file is a file, and as a manifest says. If ``thorough``, it is read."""
    if not stat.S_ISREG(status.st_mode) or status.st_size != known.size:
        return False
    looks_the_same = status.st_mtime_ns == known.changed
    return (looks_the_same and not thorough) or _digest(path) == known.digest


def files_in(directory: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Paths and status of everything below a directory except directories. Follows no links."""
    with trees.opened_own(directory) as top:
        for inner, name, status in trees.files_below(top):
            yield "/".join([*inner.names, name]), status


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
