"""Writing what holds long runs of zeros, such as a sparse file: these become holes, which take no room on the disk."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_BLOCK = 4096
"""Bytes: smaller holes save no room on the usual file systems."""
_ZEROS = bytes(_BLOCK)


def write_with_holes(descriptor: int, data: bytes) -> None:
    """Write all of ``data`` at the end of a file."""
    whole = memoryview(data)
    for start, end, is_hole in _runs(data):
        if is_hole:
            os.ftruncate(descriptor, os.lseek(descriptor, end - start, os.SEEK_CUR))
            continue
        left = whole[start:end]
        while left:
            left = left[os.write(descriptor, left) :]


def size_without_holes(data: bytes) -> int:
    """How many bytes take room where ``data`` is written so."""
    return sum(end - start for start, end, is_hole in _runs(data) if not is_hole)


def _runs(data: bytes) -> Iterator[tuple[int, int, bool]]:
    """Where holes and what is between them begin and end in ``data``; a block that is cut short at the end is no hole."""
    begin, was_hole = 0, False
    for start in range(0, len(data), _BLOCK):
        is_hole = data[start : start + _BLOCK] == _ZEROS
        if is_hole != was_hole:
            if start > begin:
                yield begin, start, was_hole
            begin, was_hole = start, is_hole
    if data:
        yield begin, len(data), was_hole
