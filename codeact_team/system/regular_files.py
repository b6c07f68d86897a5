"""Files that are just files: what lies under their name cannot lead elsewhere, nor keep whoever opens it waiting."""

from __future__ import annotations

import errno
import os
import stat


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Open a file that is no link, directory, pipe or device. If it is made, it is for its owner only.

    Args:
        path: The file.
        flags: As of ``os.open``.

    Returns:
        Its descriptor.

    Raises:
        OSError: If it cannot be opened, or is something else.
    """
    try:
        # a pipe would be waited for
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a symbolic link", path) from None
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is no regular file", path)


def read_regular(path: str | os.PathLike[str], most: int) -> bytes:
    """All that is in such a file.

    Args:
        path: The file.
        most: Bytes that it may have; a sparse file of a terabyte takes no room on a disk.

    Raises:
        OSError: As :func:`open_regular`, or if it has more.
    """
    with open(open_regular(path), "rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", path)
    return data
