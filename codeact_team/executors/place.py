"""Where code runs: a sandbox and its workspace, whatever runs in it."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence

from codeact_team.executors.growth import Growth
from codeact_team.executors.settings import ExecutorConfig
from codeact_team.executors.workspace import HostWorkspace, wide_directories
from codeact_team.sandboxes.base import Sandbox
from codeact_team.sandboxes.limits import above_default

logger = logging.getLogger(__name__)


class Place(ABC):
    """A sandbox that starts when it is needed, with its workspace. For one caller at a time.

    Attributes:
        sandbox: What runs here, once it was started, until it is stopped.
        growth: How much the workspace has grown.
        must_guard: Whether an interpreter is refused whose supervisor the code could tamper with.
    """

    def __init__(self, config: ExecutorConfig, *, owner: int | None = None) -> None:
        self._settings = config
        self.workspace = HostWorkspace(config.work_dir, owner=owner)
        self.sandbox: Sandbox | None = None
        self.growth = self._nothing_grown()
        self.must_guard = True

    @property
    def loosenings(self) -> Sequence[str]:
        """Each setting that is weaker than the default, in words."""
        growth = above_default(self._settings, "workspace_mib", "workspace_files")
        return [*growth, *wide_directories({"work_dir": self._settings.work_dir})]

    @abstractmethod
    def _make_sandbox(self) -> Sandbox:
        """A new sandbox, not started."""

    @abstractmethod
    def host_path(self, file: str) -> str | None:
        """The host's name for a file of the workspace, where the workspace is a directory of the host."""

    @property
    def running(self) -> bool:
        """Whether the sandbox runs."""
        return self.sandbox is not None and self.sandbox.running

    async def start(self) -> None:
        """Start the sandbox, if it does not run.

        Raises:
            SandboxError: If it cannot start.
        """
        if self.sandbox is None:
            for loosening in self.loosenings:
                logger.warning("the sandbox is looser than its default: %s", loosening)
            self.sandbox = self._make_sandbox()
        if not self.sandbox.running:
            await self.sandbox.start()
            await self.growth.begin(self.sandbox.directories)

    async def stop(self) -> None:
        """Stop the sandbox, and remove what is temporary."""
        sandbox, self.sandbox = self.sandbox, None
        try:
            if sandbox is not None:
                await sandbox.stop()
        finally:
            self.growth = self._nothing_grown()
            await self.workspace.remove()

    def _nothing_grown(self) -> Growth:
        return Growth(self._settings.workspace_mib, self._settings.workspace_files)
