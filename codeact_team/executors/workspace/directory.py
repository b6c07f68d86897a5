"""The directory of this machine that is a workspace, and its quota.

The kernel has no quota for a directory. So files are counted when the sandbox starts, and again whenever code has run for
a while.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import time
from collections.abc import AsyncGenerator, Generator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from codeact_team.core.aio import to_the_end
from codeact_team.errors import SandboxError
from codeact_team.executors.settings import HostDirectory
from codeact_team.files import trees
from codeact_team.files.opening import below, made_named, opened, parent_of, resolved
from codeact_team.files.trees import Visited, walk
from codeact_team.sandbox.temporary import TemporaryDirectory
from codeact_team.session.protocol import FORKS_PREFIX, MIB

logger = logging.getLogger(__name__)

_SYSTEM = tuple(
    map(Path, "/bin /boot /dev /etc /lib /lib64 /proc /run /sbin /sys /usr /var/lib/docker /var/log".split())
)


def wide_directories(given: Mapping[str, HostDirectory]) -> Iterator[str]:
    """The settings whose directory gives the code more than a workspace, with a reason."""
    for field, value in given.items():
        if value is not None and (held := _held(resolved(value))):
            yield f"{field}: {value} (holds {held})"


def _held(directory: Path) -> str | None:
    if any(path.is_relative_to(directory) or directory.is_relative_to(path) for path in _SYSTEM):
        return "what belongs to the system"
    if Path(os.path.expanduser("~")).is_relative_to(directory):
        return "the home directory"
    current = Path.cwd()
    return "the current directory" if current.is_relative_to(directory) and current != directory else None


class _OwnWorkspaces:
    """The directories for the workspaces of one run, which belong to it only, and stay when it has ended.

    Args:
        top: The directory of the first one; the others have its name, and a number.
    """

    def __init__(self, top: Path) -> None:
        self._top = top
        self._count = 0

    def next(self) -> Path:
        """The path of another one. It is made when it is needed."""
        self._count += 1
        return self._top if self._count == 1 else self._top.with_name(f"{self._top.name}-{self._count}")


_own: ContextVar[_OwnWorkspaces | None] = ContextVar("codeact_team_own_workspaces", default=None)


@contextmanager
def own_workspaces(top: Path | None) -> Generator[None]:
    """Within it, an executor that is made without a ``work_dir`` works in a directory at ``top`` that stays.

    Without ``top``, its directory is temporary.
    """
    token = _own.set(None if top is None else _OwnWorkspaces(top))
    try:
        yield
    finally:
        _own.reset(token)


class WorkspaceDirectory:
    """Makes the directory when it is needed, and removes it afterwards if it is temporary, or has stayed empty.

    Without a ``work_dir`` it is temporary, or within :func:`own_workspaces` the run's own. If root makes it, it belongs to
    the user ``owner``, by default root.

    Attributes:
        is_own: Whether it belongs to one run only.
        lasts: Whether it stays.
    """

    def __init__(self, work_dir: HostDirectory, *, owner: int | None = None) -> None:
        self.is_own: bool = work_dir is None
        own = _own.get()
        if work_dir is None and own is not None:
            work_dir = own.next()
        self.lasts: bool = work_dir is not None
        self._work_dir = None if work_dir is None else Path(work_dir)
        self._owner = owner
        self._temporary: TemporaryDirectory | None = None
        self._made: tuple[int, int] | None = None
        """Device and inode of the directory that was made."""
        # each block asks for it: a Path takes longer than the kernel
        self._made_path = ""
        self._temporary_files: set[str] = set()
        """The paths of files to be removed at the end."""

    @property
    def is_gone(self) -> bool:
        """Whether somebody has removed or replaced the directory since it was made."""
        if self._made is None:
            return False
        try:
            status = os.stat(self._made_path)
        except OSError:
            return True
        return (status.st_dev, status.st_ino) != self._made

    @property
    def path(self) -> Path:
        """The directory. Raises a ``RuntimeError`` if it is a temporary one that does not exist yet."""
        if self._work_dir is not None:
            return self._work_dir
        if self._temporary is None:
            raise RuntimeError("Working directory not properly initialized")
        return Path(self._temporary.path)

    def make(self) -> Path:
        """Make the directory unless it exists. Returns its absolute path, with its links. Raises a ``SandboxError``."""
        try:
            if self._work_dir is None:
                if self._temporary is None:
                    self._temporary = TemporaryDirectory()
                    if self._owner is not None and os.geteuid() == 0:
                        os.chown(self.path, self._owner, self._owner)
            else:
                if self.is_own:
                    with made_named(self._work_dir.parent, 0o700):
                        pass
                self._make_named(self._work_dir)
        except FileNotFoundError as error:
            # a path that is mistyped makes no tree of directories
            raise SandboxError(
                f"the work_dir {self._work_dir} cannot be made: there is no directory {self.path.parent}; "
                "make it, or check the path"
            ) from error
        except OSError as error:
            raise SandboxError(f"the work_dir {self._work_dir} cannot be made: {error.strerror}") from error
        self._made_path = str(self.path)
        try:
            with opened(self.path) as directory:
                status = os.fstat(directory)
        except OSError as error:
            raise SandboxError(f"the work_dir {self.path} cannot be opened: {error.strerror}") from error
        self._made = status.st_dev, status.st_ino
        return self.path.absolute()

    def _make_named(self, directory: Path) -> None:
        with parent_of(directory) as (above, name):
            try:
                # other users must not read the files of the code
                os.mkdir(name, 0o700, dir_fd=above)
            except FileExistsError:
                return
            if not self.is_own:
                logger.info("made the work_dir %s", directory.absolute())
            if self._owner is not None and os.geteuid() == 0:
                os.chown(name, self._owner, self._owner, dir_fd=above, follow_symlinks=False)

    def remove_at_end(self, path: str) -> None:
        """Remove the file or directory at this path at the end, and its parent if that is empty then."""
        if self._work_dir is not None:
            self._temporary_files.add(path)

    async def remove(self) -> None:
        """Remove a temporary directory, or else the temporary files. Nothing may run there any more."""
        self._remove_temporary_files()
        if self.is_own and self._work_dir is not None and self._made is not None:
            # it has stayed empty
            with suppress(OSError), parent_of(self._work_dir) as (above, name):
                os.rmdir(name, dir_fd=above)
        directory, self._temporary, self._made = self._temporary, None, None
        if directory is not None:
            try:
                await to_the_end(asyncio.to_thread(directory.remove))
            except OSError as error:
                logger.warning("temporary files are left in %s: %s", directory.path, error)

    def _remove_temporary_files(self) -> None:
        paths, self._temporary_files = self._temporary_files, set()
        if self._work_dir is None or self._made is None or self.is_gone:
            return
        for path in paths:
            above, _, name = path.rpartition("/")
            try:
                with opened(self._work_dir) as top:
                    with below(top, above) as directory:
                        # if code has put a link there, only the link is removed
                        if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                            trees.remove(name, directory)
                        else:
                            os.unlink(name, dir_fd=directory)
                    with suppress(OSError):
                        os.rmdir(above, dir_fd=top)
            except FileNotFoundError:
                pass
            except OSError as error:
                logger.warning(
                    "the temporary directory %s could not be removed: %s", self._work_dir / path, error
                )


_INTERVAL = 1.0
"""Seconds that code runs between two counts, or more:"""
_PAUSE_PER_COUNT = 20
"""seconds between two counts for each second that one takes."""
_SHORT_INTERVAL = 0.1
"""Seconds between two counts while the quota is exceeded."""
STATUS_BLOCK = 512
"""Bytes of a block in the status of a file, whatever the file system."""
_SLACK = 1 * MIB, 16
"""Bytes and files that code may add while the quota is exceeded: to remove files may need some."""


class Quota:
    """Limits how much code adds to directories.

    Args:
        mib: MiB that may be added; ``None`` for any amount.
        files: Files and directories that may be added; ``None`` for any number.
        field: The setting with that size.

    Attributes:
        pause: Seconds that code may run until the next count.
    """

    def __init__(self, mib: int | None, files: int | None, field: str = "workspace_mib") -> None:
        self._mib = mib
        self._files = files
        self._field = field
        self._of_temporary: Quota | None = None
        """The one of the directory for temporary files."""
        self._directories: Sequence[Path] = ()
        self._before: _Usage | None = None
        self._least: tuple[int, int] | None = None
        """The least bytes and files since the quota is exceeded."""
        self.pause: float = _INTERVAL

    async def begin(self, directories: Sequence[Path], temporary: tuple[Path, int] | None = None) -> None:
        """Count the files before the code runs. Idempotent. Raises a ``SandboxError`` if that is impossible.

        Args:
            directories: The directories that it limits.
            temporary: A directory for temporary files, and the MiB that it may have itself.
        """
        self._directories = directories
        if temporary is not None:
            place, mib = temporary
            if self._of_temporary is None:
                self._of_temporary = Quota(mib, self._files, "tmpfs_mib")
            await self._of_temporary.begin([place])
        if self._before is not None or (self._mib is None and self._files is None):
            return
        try:
            self._before = await to_the_end(asyncio.to_thread(_count, directories))
        except OSError as error:
            raise SandboxError(
                f"the contents of {', '.join(map(str, directories))} cannot be counted: {error}; set `workspace_mib` "
                "and `workspace_files` to null to go on without a limit"
            ) from error

    @asynccontextmanager
    async def not_counting(self) -> AsyncGenerator[None]:
        """Within it, what is added by others than the code does not count."""
        if self._before is None:
            yield
            return
        before = await to_the_end(asyncio.to_thread(_count, self._directories))
        yield
        now = await to_the_end(asyncio.to_thread(_count, self._directories))
        self._before.size += now.size - before.size
        self._before.files += now.files - before.files

    async def check(self) -> str | None:
        """The setting that is exceeded, with its value. Once returned, it is returned again only if more was added since."""
        exceeded = await to_the_end(asyncio.to_thread(self._check))
        if exceeded is None and (temporary := self._of_temporary) is not None:
            exceeded = await temporary.check()
            self.pause = min(self.pause, temporary.pause)
        return exceeded

    @property
    def has_full_disk(self) -> bool:
        """Whether a file system that has a part of the workspace is full."""
        for directory in self._directories:
            with suppress(OSError):
                there = os.statvfs(directory)
                if there.f_bavail * there.f_frsize < MIB or (there.f_files and not there.f_favail):
                    return True
        return self._of_temporary is not None and self._of_temporary.has_full_disk

    async def exceeded_by_copies(self, home: str, copies: int, *, replaced: str | None = None) -> str | None:
        """The setting that copies of the directory ``home`` below the workspace would exceed, with its value.

        Forks below ``home`` do not count, nor does the content of the directory ``replaced``, which will be removed.
        """
        return await to_the_end(asyncio.to_thread(self._exceeded_by_copies, home, copies, replaced))

    def _exceeded_by_copies(self, home: str, copies: int, replaced: str | None) -> str | None:
        if (before := self._before) is None or not self._directories:
            return None
        try:
            now, part, gone = self._counted(before), _Usage(), _Usage()
            part.add(self._directories[0] / home, FORKS_PREFIX)
            if replaced is not None:
                gone.add(self._directories[0] / replaced, FORKS_PREFIX)
        except OSError as error:
            return self._uncountable(error)
        now.size += copies * part.size - gone.size_once
        now.files += copies * part.files - gone.files_once
        return self._exceeded(before, now)

    def _check(self) -> str | None:
        if (before := self._before) is None:
            return None
        began = time.monotonic()
        try:
            now = self._counted(before)
        except OSError as error:
            self.pause = _SHORT_INTERVAL
            return self._uncountable(error)
        exceeded = self._exceeded(before, now)
        self.pause = max(
            _SHORT_INTERVAL if exceeded else _INTERVAL, _PAUSE_PER_COUNT * (time.monotonic() - began)
        )
        return exceeded if self._is_news(exceeded, now) else None

    def _counted(self, before: _Usage) -> _Usage:
        now = _count(self._directories)
        if now.closed - before.closed:
            raise PermissionError("a directory was made that cannot be read")
        return now

    def _uncountable(self, error: OSError) -> str:
        return f"{self._field}: {self._mib}, but the contents cannot be counted: {error}"

    def _exceeded(self, before: _Usage, now: _Usage) -> str | None:
        if self._mib is not None and now.size - before.size > self._mib * MIB:
            return f"{self._field}: {self._mib}"
        if self._files is not None and now.files - before.files > self._files:
            return f"workspace_files: {self._files}"
        return None

    def _is_news(self, exceeded: str | None, now: _Usage) -> bool:
        least, self._least = self._least, None if exceeded is None else (now.size, now.files)
        if least is None:
            return True
        size, files = least
        more_size, more_files = _SLACK
        if now.size > size + more_size or now.files > files + more_files:
            return True
        if exceeded is not None:
            self._least = min(size, now.size), min(files, now.files)
        return False


def _count(directories: Sequence[Path]) -> _Usage:
    usage = _Usage()
    for directory in directories:
        usage.add(directory)
    return usage


class _Usage:
    """Counts the files in directories that hostile code may change meanwhile. Follows no links, leaves no file system.

    Attributes:
        size: Bytes on the disk.
        files: The number of files of all kinds.
        size_once: The bytes of files with one name only.
        files_once: The number of these files.
        closed: Directories of other users that cannot be read, by device and inode.
    """

    def __init__(self) -> None:
        self.size = 0
        self.files = 0
        self.size_once = 0
        self.files_once = 0
        self.closed: set[tuple[int, int]] = set()
        self._linked: set[tuple[int, int]] = set()

    def add(self, directory: Path, leave_out: str = "") -> None:
        """Count the files in a directory, if it exists, except paths below it that begin with ``leave_out``.

        Raises an ``OSError`` if a directory of this user cannot be read, or was moved meanwhile.
        """
        left_out = leave_out.split("/")
        with suppress(FileNotFoundError), opened(directory) as top:
            for inner in walk(top, self._note_closed):
                depth = len(inner.names)
                is_on_the_way = leave_out and inner.names == left_out[:depth] and depth < len(left_out)
                prefix = "/".join(left_out[depth:]) if is_on_the_way else None
                for name, status in inner.entries():
                    if prefix is None or not name.startswith(prefix):
                        self._add_entry(inner, name, status)

    def _note_closed(self, above: int, name: str, error: OSError) -> None:
        if not isinstance(error, PermissionError):
            raise error
        try:
            status = os.stat(name, dir_fd=above, follow_symlinks=False)
        except FileNotFoundError:
            return
        if status.st_uid == os.geteuid():
            raise error
        self.closed.add((status.st_dev, status.st_ino))

    def _add_entry(self, directory: Visited, name: str, status: os.stat_result) -> None:
        size = status.st_blocks * STATUS_BLOCK
        if stat.S_ISDIR(status.st_mode):
            directory.enter(name, status)
        elif status.st_nlink > 1:
            identity = status.st_dev, status.st_ino
            if identity in self._linked:
                return
            self._linked.add(identity)
        else:
            self.size_once += size
            self.files_once += 1
        self.size += size
        self.files += 1
