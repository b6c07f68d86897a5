"""Which processes the kernel kills first when memory is short; on Linux, that is."""

from __future__ import annotations

import os
from contextlib import suppress

_FIRST_CHOICE = b"1000"
SECOND_CHOICE = b"500"


class OomScore:
    """Makes what is forked inside its ``with`` the first choice.

    Must be made before this process gives up being dumpable: its own files are root's from then on.

    Args:
        own: The score of this process from now on; by default the one it has.
        proc: A descriptor of ``/proc``, for a process to which that is read-only, or another, by now.
    """

    def __init__(self, own: bytes = b"", proc: int | None = None) -> None:
        self._own = own
        self._fd: int | None = None
        path = "/proc/self/oom_score_adj" if proc is None else "self/oom_score_adj"
        with suppress(OSError):
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC, dir_fd=proc)
            self._own = own or os.read(fd, 16)
            self._fd = fd
        self._write(self._own)

    def __enter__(self) -> None:
        self._write(_FIRST_CHOICE)

    def __exit__(self, *_: object) -> None:
        # in the child, the file is still the parent's
        self._write(self._own)

    def _write(self, score: bytes) -> None:
        if self._fd is not None:
            with suppress(OSError):
                os.pwrite(self._fd, score, 0)
