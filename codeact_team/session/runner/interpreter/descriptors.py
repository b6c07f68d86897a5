"""A file descriptor that code may close or redirect behind our back."""

from __future__ import annotations

import errno
from fcntl import F_GETOWN, F_SETOWN, fcntl


class Descriptor:
    """Knows the open file that a descriptor refers to now.

    It is recognised by the owner that it is given, which matters for signals that nobody asks for. To ask for its
    identity would be simpler, but takes a sandbox that looks at such calls a hundred times as long.

    Args:
        fd: The descriptor.
        owner: A process that outlives this object.
    """

    def __init__(self, fd: int, owner: int) -> None:
        self.fd = fd
        self._owner = owner
        fcntl(fd, F_SETOWN, owner)

    def intact(self) -> bool:
        """Whether it still refers to the same open file."""
        try:
            return fcntl(self.fd, F_GETOWN) == self._owner
        except OSError:
            return False

    def require(self) -> int:
        """The descriptor. Raises an ``OSError`` if it no longer refers to the same open file."""
        if not self.intact():
            raise OSError(errno.EBADF, f"file descriptor {self.fd}, which is not the code's, was closed")
        return self.fd
