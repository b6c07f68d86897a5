"""Files that commands write all at once or not at all, such as that of a run's answer."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from codeact_team.errors import SettingError
from codeact_team.files import whole_files
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
            directory, name = stack.enter_context(whole_files.place_of(path))
        yield partial(_write, path, directory, name)


@contextmanager
def whole_file(path: Path, what: str, *, replace: bool = True) -> Generator[NewFile]:
    """A file that is there at the end of this, unless something fails within it.

    Args:
        path: Where. There may be a file, which it replaces then, and nothing else.
        what: What is written, for errors.
        replace: Whether it may replace that.

    Raises:
        SettingError: If it cannot be written.
    """
    with _explained(path, what), whole_files.whole_file(path, replace=replace) as file:
        yield file


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
