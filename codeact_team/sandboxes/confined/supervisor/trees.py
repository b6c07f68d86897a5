"""Removing what hostile code has left: trees of any depth, with any permissions."""

from __future__ import annotations

import os
from contextlib import suppress


def remove(top: str) -> None:
    """Remove the directory ``top`` with all that is in it. Follows no links; nothing may write to it meanwhile."""
    number = 0
    while directories := _remove_files(top):
        for name in directories:
            path = os.path.join(top, name)
            os.chmod(path, 0o700)
            for inner in _remove_files(path):
                # moved up instead of walked into: the depth is not bounded, the length of a path is
                number += 1
                inner_path = os.path.join(path, inner)
                os.chmod(inner_path, 0o700)
                os.rename(inner_path, _unused(top, number))
            os.rmdir(path)
    os.rmdir(top)


def _unused(top: str, number: int) -> str:
    path = os.path.join(top, f"moved-{number}")
    while os.path.lexists(path):
        path += "-"
    return path


def _remove_files(directory: str) -> list[str]:
    """Remove what is not a directory; the names of those that are."""
    left: list[str] = []
    with os.scandir(directory) as entries:
        for entry in list(entries):
            if entry.is_dir(follow_symlinks=False):
                left.append(entry.name)
            else:
                with suppress(FileNotFoundError):
                    os.unlink(entry.path)
    return left
