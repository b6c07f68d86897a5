"""The file that a run's answer is written to."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from codeact_team.errors import SettingError


@contextmanager
def answer_file(path: Path) -> Generator[Callable[[str], None]]:
    """What writes the answer to a file, all at once or not at all.

    What the path means is settled here: code that may change the directory meanwhile leads the answer nowhere else.

    Raises:
        SettingError: If no file can be written there, at the beginning; or at the end, if that has changed.
    """
    folder, name = os.path.split(os.path.realpath(path))
    with _explained(path):
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with _explained(path):
            _check(path, directory, name)
        yield partial(_write, path, directory, name)
    finally:
        os.close(directory)


def _check(path: Path, directory: int, name: str) -> None:
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
            raise SettingError(f"the answer cannot be written to {path}: it is no file")
    with _temporary(directory):
        pass


def _write(path: Path, directory: int, name: str, answer: str) -> None:
    content = answer if answer.endswith("\n") else f"{answer}\n"
    with _explained(path), _temporary(directory) as (temporary, descriptor):
        with open(descriptor, "wb", closefd=False) as stream:
            stream.write(content.encode(errors="replace"))
        # a link that was put there is replaced, not followed
        os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)


@contextmanager
def _temporary(directory: int) -> Generator[tuple[str, int]]:
    name = f".codeact-team-{secrets.token_hex(8)}"
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=directory)
    try:
        yield name, descriptor
    finally:
        os.close(descriptor)
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=directory)


@contextmanager
def _explained(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise SettingError(f"the answer cannot be written to {path}: {error.strerror}") from error
