"""How much of the disk what is kept of a run may take."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Lock

from codeact_team.errors import JournalError

MIB = 1 << 20
DEFAULT_MIB = 1024
"""MiB that are kept of a run, unless it is said otherwise."""
_FOR_FILES = 3 / 4
"""The share that files and artifacts may use up: the rest is for what the run needs to go on."""


class Room:
    """Counts the bytes that are written of a run. Threads may share one.

    Args:
        mib: How many MiB there may be; ``None`` for any number.
        directory: Where the run is kept: what is there already counts, too. Reading it blocks.
    """

    def __init__(self, mib: int | None, directory: Path) -> None:
        self.mib = mib
        self._most = float("inf") if mib is None else mib * MIB
        self._used = 0 if mib is None else used_by(directory)
        self._lock = Lock()

    @property
    def is_used_up(self) -> bool:
        """Whether nothing more is to be written."""
        return self._used >= self._most

    def take(self, size: int) -> None:
        """Count bytes that are written."""
        with self._lock:
            self._used += size

    def has_for_file(self, size: int) -> bool:
        """Whether there is room for so many bytes of a file or an artifact."""
        return self._used + size <= self._most * _FOR_FILES


def used_by(directory: Path) -> int:
    """How many bytes of the disk a directory takes; 0 where there is none. Blocks.

    Raises:
        JournalError: If they cannot be counted.
    """
    used, pending = 0, [str(directory)]
    try:
        while pending:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    else:
                        used += entry.stat(follow_symlinks=False).st_blocks * 512
    except FileNotFoundError:
        return used
    except OSError as error:
        raise JournalError(f"what is in {directory} cannot be counted: {error.strerror}") from error
    return used
