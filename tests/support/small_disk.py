"""File systems of a test's own, such as a small one, which can be full."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: str) -> Generator[None]:
    """Within it, one is mounted at a directory that is made for it; where that is not possible, the test is skipped.

    Args:
        folder: Where.
        size: As ``mount`` has it, such as ``64k``.
    """
    with mounted(folder, "tmpfs", f"size={size}"):
        yield


@contextmanager
def disk_that_clones(folder: Path, kind: str) -> Generator[None]:
    """Within it, a file system of 400 MiB whose files can share blocks, ``btrfs`` or ``xfs``, is mounted. May skip the test."""
    image = folder.with_suffix(".img")
    image.touch()
    os.truncate(image, 400 << 20)
    if (make := shutil.which(f"mkfs.{kind}")) is None:
        pytest.skip(f"there is no mkfs.{kind}")
    subprocess.run([make, "-q", image], check=True, capture_output=True)
    with mounted(folder, kind, "loop", image):
        yield


@contextmanager
def mounted(
    folder: Path, kind: str, options: str = "defaults", source: str | Path = "none"
) -> Generator[None]:
    """Within it, a new file system of a kind is mounted at a directory that is made for it. May skip the test."""
    folder.mkdir(parents=True)
    mount = subprocess.run(
        ["mount", "-t", kind, "-o", options, source, folder], capture_output=True, text=True
    )
    if mount.returncode:
        pytest.skip(f"nothing can be mounted here: {mount.stderr}")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


def leave_free(folder: Path, pages: int) -> None:
    """Fill the file system but for so many blocks."""
    filler = folder / "filler"
    filler.unlink(missing_ok=True)
    there = os.statvfs(folder)
    filler.write_bytes(bytes((there.f_bavail - pages) * there.f_bsize))
