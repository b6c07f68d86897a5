"""A directory in a directory in a directory, as hostile code leaves them."""

from __future__ import annotations

import os
from pathlib import Path

DEPTH = 1100
"""More than Python recurses, than a process may usually open at once, and than a path can name."""


def make_deep_tree(top: Path) -> None:
    """Make a directory ``deep`` in ``top``, and so on, ``DEPTH`` in all."""
    directory = os.open(top, os.O_RDONLY)
    for _ in range(DEPTH):
        os.mkdir("deep", dir_fd=directory)
        below = os.open("deep", os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(directory)
