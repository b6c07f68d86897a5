"""Files that the code has left open: what Python has not written of them yet is written at the end of a block.

Who looks at the workspace between two blocks, as a host that delivers it, finds what a person expects there.
"""

from __future__ import annotations

import os

# without the module around it, which takes long to load
from _weakref import ref
from contextlib import suppress
from fcntl import F_GETFL, fcntl
from select import POLLNVAL, poll
from stat import S_ISREG

from codeact_team.sandbox.system.kernel import CODE_DESCRIPTORS
from codeact_team.session.protocol import MAX_LEFT_OPEN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_FEW, _MANY = 48, CODE_DESCRIPTORS
"""So many descriptors are looked at: after each block, so it has to cost next to nothing, and more of them once these are used."""


class OpenFiles:
    """Flushes files that are open for writing."""

    def __init__(self) -> None:
        self._poll = poll()
        self._range = range(3, 3)
        self._look_at(_FEW)
        self._known: dict[int, ref[Any]] = {}
        """The file object to which each descriptor belonged last."""

    def flush(self) -> bool:
        """Write what is buffered. What cannot be written is told when the code writes more, or closes the file.

        Returns whether anything is open for writing, be it by Python or by a library.
        """
        closed = self._closed()
        if self._range.stop < _MANY and self._range[-1] not in closed:
            self._look_at(_MANY)
            closed = self._closed()
        written = {fd for fd in self._range if fd not in closed and is_written(fd)}
        self._known = {
            fd: kept for fd, kept in self._known.items() if fd in written and _descriptor(kept()) == fd
        }
        if written - self._known.keys():
            self._find(written)
        for kept in self._known.values():
            if (file := kept()) is not None:
                with suppress(OSError, ValueError):
                    file.flush()
        return bool(written)

    def left_open(self, below: str) -> list[str]:
        """The first files below a directory that are open for writing, by their paths in it. After a :meth:`flush`."""
        closed, found = self._closed(), set[str]()
        for fd in self._range:
            if len(found) < MAX_LEFT_OPEN and fd not in closed and is_written(fd):
                with suppress(OSError):
                    path = os.readlink(f"/proc/self/fd/{fd}")
                    if path.startswith(f"{below}/") and os.fstat(fd).st_nlink:
                        found.add(path[len(below) + 1 :])
        return sorted(found)

    def _look_at(self, most: int) -> None:
        for fd in range(self._range.stop, most):
            self._poll.register(fd, 0)
        self._range = range(3, most)

    def _closed(self) -> set[int]:
        """Descriptors that are surely not open."""
        try:
            return {fd for fd, event in self._poll.poll(0) if event & POLLNVAL}
        except OSError:
            # they are more than may be open, as the code has lowered that limit
            return set()

    def _find(self, written: set[int]) -> None:
        from gc import get_objects
        from io import BufferedRandom, BufferedWriter, FileIO, TextIOWrapper

        buffers = (BufferedWriter, BufferedRandom)
        file: Any
        for file in get_objects():
            # the methods of other classes are the code's
            is_text = type(file) is TextIOWrapper
            buffer: Any = file.buffer if is_text else file
            if (
                type(buffer) in buffers
                and type(buffer.raw) is FileIO
                and (fd := _descriptor(file)) in written
            ):
                # a text is above its buffer, and flushes that
                if is_text or fd not in self._known:
                    self._known[fd] = ref(file)


def is_written(fd: int) -> bool:
    """Whether it is a file, and open for writing. To write to anything else might wait."""
    try:
        return fcntl(fd, F_GETFL) & os.O_ACCMODE != os.O_RDONLY and S_ISREG(os.fstat(fd).st_mode)
    except OSError:
        return False


def _descriptor(file: Any) -> int | None:
    """The descriptor of an open file."""
    try:
        return None if file is None else file.fileno()
    except (OSError, ValueError):
        return None
