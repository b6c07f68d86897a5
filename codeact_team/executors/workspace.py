"""The directory of the host that is a sandbox's workspace: the user's, or a temporary one."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
from pathlib import Path

from codeact_team.aio import to_the_end
from codeact_team.errors import SandboxError

logger = logging.getLogger(__name__)


class HostWorkspace:
    """Makes the workspace's directory when it is needed, and removes it afterwards if it was temporary.

    Args:
        work_dir: The user's directory; ``None`` for a temporary one.
        owner: Who shall own a directory that root makes; ``None`` for root.
    """

    def __init__(self, work_dir: str | None, *, owner: int | None = None) -> None:
        self._work_dir = None if work_dir is None else Path(work_dir)
        self._owner = owner
        self._temporary: Path | None = None

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
        return self._temporary

    def make(self) -> Path:
        """Make sure the directory exists, and return it in full.

        Raises:
            SandboxError: If it cannot be made.
        """
        try:
            if self._work_dir is None:
                if self._temporary is None:
                    self._temporary = Path(tempfile.mkdtemp(prefix="codeact-team-"))
                    self._give_away(self._temporary)
            elif not self._work_dir.is_dir():
                self._work_dir.mkdir(parents=True)
                self._give_away(self._work_dir)
        except OSError as error:
            raise SandboxError(f"the work_dir {self._work_dir} cannot be made: {error.strerror}") from error
        return self.path.resolve()

    def _give_away(self, directory: Path) -> None:
        if self._owner is not None and os.geteuid() == 0:
            os.chown(directory, self._owner, self._owner)

    async def remove(self) -> None:
        """Remove the directory if it is a temporary one."""
        directory, self._temporary = self._temporary, None
        if directory is not None:
            await to_the_end(asyncio.to_thread(shutil.rmtree, directory, onerror=_report))


def _report(function: object, path: str, error: object) -> None:
    logger.warning("temporary file left: %s", path)
