"""Tar archives that are written piece by piece, so that their size does not matter."""

from __future__ import annotations

import errno
import os
import tarfile
from collections.abc import Iterator
from typing import BinaryIO

_CHUNK = 1 << 18

END = bytes(2 * tarfile.BLOCKSIZE)
"""The end of an archive."""


def head(member: tarfile.TarInfo) -> bytes:
    """The header of a member. A directory or a link has nothing else."""
    return member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def file_member(member: tarfile.TarInfo, source: BinaryIO) -> Iterator[bytes]:
    """The header and content of a file, as large as the member says. Blocks. Raises an ``OSError`` if the file is shorter."""
    yield head(member)
    left = member.size
    while left and (data := source.read(min(left, _CHUNK))):
        left -= len(data)
        yield data
    if left:
        raise OSError(errno.EIO, f"{os.fsdecode(source.name)} became shorter while it was read")
    yield bytes(-member.size % tarfile.BLOCKSIZE)
