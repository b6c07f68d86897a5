"""Files that are just files: what lies under their name cannot lead elsewhere, nor keep whoever opens it waiting."""

from __future__ import annotations

import errno
import os
import re
import stat

from codeact_team.sandbox.system.named_paths import open_named

_OWN = re.compile(r"/dev/stdin|/(?:dev|proc/self)/fd/([0-9]{1,9})")


def open_regular(path: str | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Open a file that is no directory, pipe or device. If it is made, it is for its owner only.

    Args:
        path: The file; what this process has open already, such as ``/dev/fd/63`` of a shell's ``<(command)``, may be a pipe.
        flags: As of ``os.open``.

    Returns:
        Its descriptor.

    Raises:
        OSError: As :func:`open_named`, which follows no link that code may have planted; or if it is something else.
    """
    if (own := _OWN.fullmatch(os.fspath(path))) is not None:
        return os.dup(int(own[1] or 0))
    # a pipe would be waited for
    descriptor = open_named(path, flags | os.O_NONBLOCK, 0o600)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, "it is no regular file", path)


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
