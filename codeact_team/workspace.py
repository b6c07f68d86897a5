"""What is told of a workspace, the place where the files of the code are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path


class Change(StrEnum):
    """What has become of a file of the workspace."""

    MADE = "made"
    CHANGED = "changed"


@dataclass(frozen=True)
class ChangedFile:
    """A file that code has made or changed.

    Attributes:
        path: Where in the workspace, as :func:`os.fsdecode` has it; hostile data.
        size: In bytes.
        change: What has become of it.
    """

    path: str
    size: int
    change: Change


@dataclass(frozen=True)
class Changes:
    """The files that code has made or changed.

    Attributes:
        files: In the order of their paths; ten thousand at most.
        remark: What else there is to say, such as how many more there are.
    """

    files: Sequence[ChangedFile] = ()
    remark: str = ""


@dataclass(frozen=True)
class SavedFile:
    """What became of a file that was to be copied out of the workspace.

    Attributes:
        path: As :attr:`ChangedFile.path` has it.
        copy: The path of the copy below the directory that it was copied to; ``None`` where there is none.
        problem: Why not.
        is_due: Whether it could not be written, as where a disk is full, and so is to be copied once a person has made that possible.
    """

    path: str
    copy: str | None
    problem: str = ""
    is_due: bool = False


@dataclass(frozen=True, slots=True)
class RecordedFile:
    """A file of the workspace at one time.

    Attributes:
        digest: What its content is kept as; ``None`` where it is not: it is too long, or must not be.
        size: In bytes.
        is_executable: Whether its owner may run it.
    """

    digest: str | None
    size: int
    is_executable: bool


@dataclass(frozen=True)
class Workspace:
    """Where the files of the code are.

    Attributes:
        path: The directory of this machine; ``None`` where they are in a container, or the directory is yet to be made.
        lasts: Whether it is there when the executor has stopped.
    """

    path: Path | None
    lasts: bool
