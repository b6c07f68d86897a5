"""Files that are written all at once or not at all: that of a run's answer, and that of its page."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

from codeact_team.errors import SettingError
from codeact_team.files.directories import Directory, NewFile
from codeact_team.system.named_paths import parent_of

_ANSWER = "the answer"


@contextmanager
def answer_file(path: Path) -> Generator[Callable[[str], None]]:
    """What writes the answer to a file, all at once or not at all.

    What the path means is settled here: code that may change the directory meanwhile leads the answer nowhere else.

    Raises:
        SettingError: If no file can be written there, at the beginning; or at the end, if that has changed.
    """
    with ExitStack() as stack:
        with _explained(path, _ANSWER):
            folder, name = stack.enter_context(parent_of(path))
            directory = Directory(folder)
            _check(path, _ANSWER, directory, name)
        yield partial(_write, path, directory, name)


@contextmanager
def whole_file(path: Path, what: str) -> Generator[NewFile]:
    """A file that is there at the end of this, unless something fails within it.

    Args:
        path: Where. There may be a file, which it replaces then, and nothing else.
        what: What is written, for errors.

    Raises:
        SettingError: If it cannot be written.
    """
    with _explained(path, what), parent_of(path) as (top, name):
        directory = Directory(top)
        _check(path, what, directory, name)
        with directory.new_file(name) as file:
            yield file
            file.replace()


def _check(path: Path, what: str, directory: Directory, name: str) -> None:
    with suppress(FileNotFoundError):
        mode = os.stat(name, dir_fd=directory.top, follow_symlinks=False).st_mode
        if not stat.S_ISREG(mode):
            why = "it is a link: name what it leads to" if stat.S_ISLNK(mode) else "it is no file"
            raise SettingError(f"{what} cannot be written to {path}: {why}")
    with directory.new_file(name):
        pass


def _write(path: Path, directory: Directory, name: str, answer: str) -> None:
    content = answer if answer.endswith("\n") else f"{answer}\n"
    with _explained(path, _ANSWER), parent_of(path) as (now, _):
        if not os.path.samestat(os.fstat(now), os.fstat(directory.top)):
            raise OSError(errno.ESTALE, "its directory was replaced by another while the run worked")
    with _explained(path, _ANSWER), directory.new_file(name) as file:
        file.write(content.encode(errors="replace"))
        file.replace()


@contextmanager
def _explained(path: Path, what: str) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise SettingError(f"{what} cannot be written to {path}: {error.strerror}") from error
