"""A file descriptor that code may close or redirect behind our back."""

from __future__ import annotations

import errno
import os
from os import fstat


class Descriptor:
    """Knows the file that a descriptor refers to now.

    Args:
        fd: The descriptor.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        status = fstat(fd)
        self._file = (status.st_dev, status.st_ino)

    def intact(self) -> bool:
        """Whether it still refers to the same file."""
        try:
            status = fstat(self.fd)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._file

    def require(self) -> int:
        """The descriptor.

        Raises:
            OSError: If it no longer refers to the same file.
        """
        if not self.intact():
            raise OSError(
                errno.EBADF, f"file descriptor {self.fd}, which is not the code's, was closed", None
            )
        return self.fd

    def copy(self) -> Descriptor:
        """Another descriptor of the same file, not inherited by other programs."""
        return Descriptor(os.dup(self.fd))
