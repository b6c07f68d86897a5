"""The wheels in a directory of packages: each is compiled by itself, and once. Sets that have it share its files by hard links.

A wheel is known by its content. So it does not matter where it came from, or what it says of itself: what was compiled
from one content is never taken for another. What one wheel compiles to depends on no other wheel. It does depend on the
Python that compiles it: what that of one image has made is in no sandbox of another image.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from codeact_team.executors.packages.manifests import File, Manifest, file_at, is_still, make_manifest

PACKAGES = "site-packages"
"""Where the wheels are unpacked, within the directory of a set."""

_RECORD = re.compile(rf"{PACKAGES}/[^/]+\.dist-info/RECORD")
_WRITABLE = 0o222


@dataclass(frozen=True)
class Wheel:
    """What a wheel has brought, without what it was compiled to.

    Attributes:
        key: A digest of its files, and of the key of the Python that compiles them.
        files: The files by their paths within the directory of the set.
    """

    key: str
    files: Manifest

    @staticmethod
    def of(files: Manifest, python: str) -> Wheel:
        """The wheel that has brought these files, for the Python with this key."""
        content = "".join(f"{path}\0{file.digest}\n" for path, file in sorted(files.items()))
        key = hashlib.sha256(f"{python}\n{content}".encode(errors="surrogateescape")).hexdigest()[:32]
        return Wheel(key, {path: file._replace(wheel=key) for path, file in files.items()})

    @property
    def modules(self) -> Sequence[str]:
        """The paths of its modules."""
        return [path for path in self.files if path.endswith(".py")]

    def with_compiled(self, directory: Path, cache_tag: str) -> Manifest:
        """Its part of the manifest of a set, with what its modules were compiled to there. Reads that."""
        paths = (str(compiled_path(Path(module), cache_tag)) for module in self.modules)
        # not all can be compiled
        there = (path for path in paths if (directory / path).exists())
        return self.files | {path: file_at(directory / path, self.key) for path in there}


def compiled_path(module: Path, cache_tag: str) -> Path:
    """Where a Python whose name is ``cache_tag`` looks for what a module is compiled to."""
    return module.parent / "__pycache__" / f"{module.stem}.{cache_tag}.pyc"


def wheels_in(directory: Path, python: str) -> list[Wheel]:
    """The wheels that are unpacked in a directory, for the Python with this key. What none names counts as one. Reads every file."""
    left = make_manifest(directory)
    parts: list[Manifest] = []
    for record in filter(_RECORD.fullmatch, list(left)):
        names = (f"{PACKAGES}/{path_in(line)}" for line in record_lines(directory / record))
        parts.append({name: left.pop(name) for name in names if name in left})
    return [Wheel.of(files, python) for files in [*parts, left] if files]


def record_lines(record: Path) -> list[str]:
    """The lines of a ``RECORD``, in which a wheel names its files. Others may name the same, and it may lie."""
    return record.read_text(errors="surrogateescape").splitlines()


def path_in(line: str) -> str:
    """The path in a line of a ``RECORD``."""
    return line.rsplit(",", 2)[0].strip('"').replace('""', '"')


class KeptWheels:
    """The wheels of the sets that are kept.

    Args:
        sets: The directory of each set, with its manifest.
    """

    def __init__(self, sets: Iterable[tuple[Path, Manifest]]) -> None:
        self._kept: dict[str, dict[Path, Manifest]] = {}
        for directory, manifest in sets:
            for path, file in manifest.items():
                self._kept.setdefault(file.wheel, {}).setdefault(directory, {})[path] = file

    def link(self, key: str, target: Path) -> Manifest | None:
        """Put a wheel, compiled, into the directory of a new set. Reads every file of it. Blocks.

        Returns its part of the manifest; ``None`` if no set has it, unchanged and owned by this user.
        """
        for directory, files in self._kept.get(key, {}).items():
            try:
                if all(_is_unchanged(directory / path, file) for path, file in files.items()):
                    for path in files:
                        _place(directory / path, target / path, os.link)
                    return files
            except OSError:
                # it was just removed, or cannot be read, or the file system has no more links to it
                for path in files:
                    (target / path).unlink(missing_ok=True)
        return None


def copied(wheel: Wheel, source: Path, target: Path, python: str) -> Wheel:
    """Put a wheel that is unpacked into the directory of a new set. Returns it as it is there. Reads every file. Blocks."""
    for path in wheel.files:
        _place(source / path, target / path, shutil.copy2)
    # somebody else may have changed a file meanwhile
    return Wheel.of({path: file_at(target / path) for path in wheel.files}, python)


def _is_unchanged(path: Path, known: File) -> bool:
    status = path.lstat()
    # its owner can write it, in all sets
    ours = status.st_uid == os.geteuid() and not status.st_mode & _WRITABLE
    return ours and is_still(path, status, known, thorough=True)


def _place(source: Path, target: Path, put: Callable[[Path, Path], object]) -> None:
    if not target.parent.is_dir():
        # one by one: there may be a thousand
        for directory in reversed(target.parents):
            directory.mkdir(exist_ok=True)
    put(source, target)
