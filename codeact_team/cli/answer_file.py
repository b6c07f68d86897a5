"""The file that a run's answer is written to."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from codeact_team.errors import SettingError
from codeact_team.files.directories import Directory, opened


@contextmanager
def answer_file(path: Path) -> Generator[Callable[[str], None]]:
    """What writes the answer to a file, all at once or not at all.

    What the path means is settled here: code that may change the directory meanwhile leads the answer nowhere else.

    Raises:
        SettingError: If no file can be written there, at the beginning; or at the end, if that has changed.
    """
    folder, name = os.path.split(os.path.realpath(path))
    with ExitStack() as stack:
        with _explained(path):
            directory = Directory(stack.enter_context(opened(folder)))
            _check(path, directory, name)
        yield partial(_write, path, directory, name)


def _check(path: Path, directory: Directory, name: str) -> None:
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(os.stat(name, dir_fd=directory.top, follow_symlinks=False).st_mode):
            raise SettingError(f"the answer cannot be written to {path}: it is no file")
    with directory.new_file(name):
        pass


def _write(path: Path, directory: Directory, name: str, answer: str) -> None:
    content = answer if answer.endswith("\n") else f"{answer}\n"
    with _explained(path), directory.new_file(name) as file:
        file.write(content.encode(errors="replace"))
        file.replace()


@contextmanager
def _explained(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise SettingError(f"the answer cannot be written to {path}: {error.strerror}") from error
