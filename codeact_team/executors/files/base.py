"""Files of a workspace, wherever it is, and what has changed there."""

from __future__ import annotations

import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from codeact_team.core.executor_interface import Change, ChangedFile, Changes
from codeact_team.core.trees import walk
from codeact_team.executors.files.given import Given
from codeact_team.session.protocol import KEPT_APART

MAX_SEEN = 200_000
"""Entries of all kinds that are looked at; where a person's own directory has more, nothing can be told."""
_MAX_CHANGES = 10_000
MAX_DEPTH = 64
"""Directories inside one another, each of which is held open."""

_OURS = re.compile(rf"tmp_code_[0-9a-f]{{64}}\.[^/]*|{re.escape(KEPT_APART)}|\.put-[0-9a-f]+")
BY_PYTHON = "__pycache__"
"""What Python calls a directory in which it keeps what it made of modules."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A file as it was; two that are equal are taken for unchanged."""

    size: int
    stamp: Hashable
    """Whatever differs when somebody has written to it: times, and the number of the file."""
    is_executable: bool = False
    """Whether its owner may run it."""


@dataclass
class Snapshot:
    """The regular files of a workspace by their paths, as :func:`os.fsdecode` has them.

    Attributes:
        files: Without those that a team needs for itself, and what Python keeps of modules.
        others: How many there are that are neither files nor directories, such as links.
        unseen: How many directories were not looked into: too deep, or not to be read.
        is_whole: Whether there were no more entries than are looked at.
    """

    files: dict[str, Seen] = field(default_factory=dict[str, Seen])
    others: int = 0
    unseen: int = 0
    is_whole: bool = True


def is_ours(name: str) -> bool:
    """Whether what has this name at the top of a workspace is a team's own, and nothing that a person wants from the code."""
    return _OURS.fullmatch(name) is not None


def compare(before: Snapshot, now: Snapshot, earlier: Mapping[str, Change] = MappingProxyType({})) -> Changes:
    """What has been made or changed between two snapshots, as much of it as is listed.

    Args:
        before: The first.
        now: The second.
        earlier: What had become of files before the first: of those that are still there, this is told, too.
    """
    if not before.is_whole:
        remark = f"the workspace had more than {MAX_SEEN:,} files before, so what is new is not known"
        return Changes(remark=remark)
    changed = [
        ChangedFile(
            path,
            seen.size,
            earlier.get(path) or (Change.CHANGED if path in before.files else Change.MADE),
        )
        for path, seen in sorted(now.files.items())
        if path in earlier or before.files.get(path) != seen
    ]
    remarks: list[str] = []
    if (left_out := len(changed) - _MAX_CHANGES) > 0:
        remarks.append(f"{left_out:,} more files were made or changed, and are left out")
    if (others := now.others - before.others) > 0:
        remarks.append(f"links and the like are not listed: {others:,}")
    if not now.is_whole:
        remarks.append(f"the workspace has more than {MAX_SEEN:,} files, and not all were looked at")
    if (unseen := now.unseen - before.unseen) > 0:
        remarks.append(f"directories that cannot be read, or are too deep, were not looked into: {unseen:,}")
    return Changes(changed[:_MAX_CHANGES], "; ".join(remarks))


def take(top: int) -> Snapshot:
    """What is in the directory open as ``top``. Follows no links, leaves no file system, opens directories only. Blocks.

    Raises:
        OSError: If the directory itself cannot be read.
    """
    snapshot = Snapshot()
    left = MAX_SEEN

    def skip(*_: object) -> None:
        snapshot.unseen += 1

    for directory in walk(top, skip):
        above = "".join(f"{name}/" for name in directory.names)
        for name, status in directory.entries():
            if not left:
                snapshot.is_whole = False
                return snapshot
            left -= 1
            if name == BY_PYTHON or (not above and is_ours(name)):
                continue
            if stat.S_ISREG(status.st_mode):
                snapshot.files[above + name] = _seen(status)
            elif not stat.S_ISDIR(status.st_mode):
                snapshot.others += 1
            elif len(directory.names) < MAX_DEPTH:
                directory.enter(name, status)
            else:
                skip()
    return snapshot


def _seen(status: os.stat_result) -> Seen:
    stamp = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
    return Seen(status.st_size, stamp, bool(status.st_mode & stat.S_IXUSR))


class Files(ABC):
    """What the host reads and writes in a workspace. What is there is hostile, and may change at any time.

    Attributes:
        outlasts_sandbox: Whether it is there without its sandbox.
        is_empty: Whether it is known that nothing was there when the sandbox had started.
    """

    outlasts_sandbox: bool
    is_empty: bool

    @abstractmethod
    async def check(self, given: Sequence[Given]) -> None:
        """Find out whether there is room for what is given, as far as can be known before the sandbox has started.

        Raises:
            SettingError: If something else is in its place.
        """

    @abstractmethod
    async def put(self, given: Sequence[Given], *, replace: bool = False) -> None:
        """Copy what is given into the workspace.

        Args:
            given: What.
            replace: Whether files are written whatever is in their place, and the directories above them made.

        Raises:
            SettingError: If something else is in its place.
            SandboxError: If it cannot be copied.
        """

    @abstractmethod
    async def remove(self, paths: Sequence[str]) -> None:
        """Remove files; one that is not there is no matter.

        Args:
            paths: As in a snapshot.

        Raises:
            SandboxError: If one cannot be removed.
        """

    @abstractmethod
    async def snapshot(self) -> Snapshot:
        """What is there now.

        Raises:
            SandboxError: If that cannot be found out.
        """

    @abstractmethod
    def read(self, path: str, size: int) -> AsyncGenerator[bytes]:
        """The content of a regular file, as much as it had when it was of this ``size``.

        Args:
            path: As in a snapshot.
            size: In bytes.

        Raises:
            OSError: If it cannot be read.
        """

    @abstractmethod
    async def read_all(self, wanted: Mapping[str, int], take: Callable[[str, bytes], None]) -> None:
        """Read many files as a whole; one that cannot be read is left out.

        Args:
            wanted: The sizes by path, as in a snapshot; no more than that is read.
            take: Gets each path with its content, in a thread.
        """

    @abstractmethod
    async def add(self, name: str, data: bytes) -> str:
        """Add a file; see :meth:`codeact_team.StreamingCodeExecutor.add_file`."""
