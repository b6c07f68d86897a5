"""The directory of the host that is a sandbox's workspace: the user's, or a temporary one."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from codeact_team.aio import to_the_end
from codeact_team.errors import SandboxError
from codeact_team.executors.settings import HostDirectory
from codeact_team.files.directories import below, opened
from codeact_team.sandboxes.temporary import TemporaryDirectory
from codeact_team.system import trees
from codeact_team.system.named_paths import parent_of, resolved

logger = logging.getLogger(__name__)

_SYSTEM = tuple(
    map(Path, "/bin /boot /dev /etc /lib /lib64 /proc /run /sbin /sys /usr /var/lib/docker /var/log".split())
)


def wide_directories(given: Mapping[str, HostDirectory]) -> Iterator[str]:
    """The directories, by field, that give the code more than a workspace; each with what it holds."""
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


class HostWorkspace:
    """Makes the workspace's directory when it is needed, and removes it afterwards if it was temporary.

    Args:
        work_dir: The user's directory; ``None`` for a temporary one.
        owner: Who shall own a directory that root makes; ``None`` for root.
    """

    def __init__(self, work_dir: HostDirectory, *, owner: int | None = None) -> None:
        self._work_dir = None if work_dir is None else Path(work_dir)
        self._owner = owner
        self._temporary: TemporaryDirectory | None = None
        self._made: tuple[int, int] | None = None
        """Device and inode of the directory that was made."""
        # each block asks for it: a Path takes longer than the kernel
        self._made_path = ""
        self._passing: set[str] = set()
        """Paths of files that are to be removed at the end."""

    @property
    def is_gone(self) -> bool:
        """Whether somebody has removed or replaced the directory since it was made."""
        if self._made is None:
            return False
        try:
            return _identity(self._made_path) != self._made
        except OSError:
            return True

    @property
    def path(self) -> Path:
        """The directory.

        Raises:
            RuntimeError: If it is a temporary one that does not exist yet.
        """
        if self._work_dir is not None:
            return self._work_dir
        if self._temporary is None:
            raise RuntimeError("Working directory not properly initialized")
        return Path(self._temporary.path)

    def make(self) -> Path:
        """Make sure the directory exists, and return its absolute path.

        Links in it are not resolved: whoever uses it opens it once, and follows none.

        Raises:
            SandboxError: If it cannot be made.
        """
        try:
            if self._work_dir is None:
                if self._temporary is None:
                    self._temporary = TemporaryDirectory()
                    self._give_away(self.path)
            else:
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
                # what code leaves there is for nobody else of this machine
                os.mkdir(name, 0o700, dir_fd=above)
            except FileExistsError:
                return
            logger.info("made the work_dir %s", directory.absolute())
            if self._owner is not None and os.geteuid() == 0:
                os.chown(name, self._owner, self._owner, dir_fd=above, follow_symlinks=False)

    def _give_away(self, directory: Path) -> None:
        if self._owner is not None and os.geteuid() == 0:
            os.chown(directory, self._owner, self._owner)

    def remove_at_end(self, path: str) -> None:
        """Let what is at this path be removed with what is temporary, and the directory around it, if it is empty then."""
        if self._work_dir is not None:
            self._passing.add(path)

    async def remove(self) -> None:
        """Remove what is temporary: the directory, or the files that are not to stay. Nothing may run there any more."""
        self._remove_passing()
        directory, self._temporary, self._made = self._temporary, None, None
        if directory is not None:
            try:
                await to_the_end(asyncio.to_thread(directory.remove))
            except OSError as error:
                logger.warning("temporary files left in %s: %s", directory.path, error)

    def _remove_passing(self) -> None:
        paths, self._passing = self._passing, set()
        if self._work_dir is None or self._made is None or self.is_gone:
            return
        for path in paths:
            above, _, name = path.rpartition("/")
            try:
                with opened(self._work_dir) as top:
                    with below(top, above) as directory:
                        # of a link that code has put there, this removes the link
                        if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
                            trees.remove(name, directory)
                        else:
                            os.unlink(name, dir_fd=directory)
                    with suppress(OSError):
                        os.rmdir(above, dir_fd=top)
            except FileNotFoundError:
                pass
            except OSError as error:
                logger.warning("%s, which is temporary, is left: %s", self._work_dir / path, error)


def _identity(directory: str) -> tuple[int, int]:
    status = os.stat(directory)
    return status.st_dev, status.st_ino
