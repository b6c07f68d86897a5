"""Files at paths that a person names, written all at once or not at all."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress

from codeact_team.files.directories import Directory, NewFile
from codeact_team.system.named_paths import parent_of


@contextmanager
def whole_file(
    path: str | os.PathLike[str], *, replace: bool = True, mode: int = 0o666
) -> Generator[NewFile]:
    """A file that is there at the end of this, unless something fails within it.

    Args:
        path: Where, as of :func:`codeact_team.system.named_paths.open_named`.
        replace: Whether it may replace a file that is there.
        mode: Its permissions.

    Raises:
        OSError: If it cannot be written, or something else is there.
    """
    with place_of(path, replace=replace) as (directory, name), directory.new_file(name, mode=mode) as file:
        yield file
        file.replace()


@contextmanager
def place_of(path: str | os.PathLike[str], *, replace: bool = True) -> Generator[tuple[Directory, str]]:
    """Where such a file is to be, open, and the name that it gets there.

    Raises:
        OSError: As :func:`whole_file`.
    """
    with parent_of(path) as (top, name):
        directory = Directory(top)
        with suppress(FileNotFoundError):
            _check(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode, replace=replace)
        with directory.new_file(name):
            pass
        yield directory, name


def _check(mode: int, *, replace: bool) -> None:
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, "it is a link: name what it leads to")
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is no file")
    if not replace:
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
