"""Writing what holds long runs of zeros, such as a sparse file: these become holes, which take no room on the disk."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_PIECE = 64 * 1024
_ZEROS = bytes(_PIECE)


def write_with_holes(descriptor: int, data: bytes) -> None:
    """Write all of ``data`` at the end of a file."""
    for piece, is_hole in _pieces(data):
        if is_hole:
            os.ftruncate(descriptor, os.lseek(descriptor, len(piece), os.SEEK_CUR))
            continue
        left = memoryview(piece)
        while left:
            left = left[os.write(descriptor, left) :]


def size_without_holes(data: bytes) -> int:
    """How many bytes take room where ``data`` is written so."""
    return sum(len(piece) for piece, is_hole in _pieces(data) if not is_hole)


def _pieces(data: bytes) -> Iterator[tuple[bytes, bool]]:
    """The pieces of ``data``, each with whether it holds zeros only; one that is cut short at the end is no hole."""
    for start in range(0, len(data), _PIECE):
        piece = data[start : start + _PIECE]
        yield piece, piece == _ZEROS
