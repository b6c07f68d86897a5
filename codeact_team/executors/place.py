"""Where code runs: a sandbox and its workspace, whatever runs in it."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence

from codeact_team.executors.growth import Growth
from codeact_team.executors.workspace import HostWorkspace
from codeact_team.sandboxes.base import Sandbox

logger = logging.getLogger(__name__)


class Place(ABC):
    """A sandbox that starts when it is needed, with its workspace. For one caller at a time.

    Args:
        workspace: The workspace's directory on the host.
        mib: How much that may grow, in MiB; ``None`` for no limit.
        files: How many files may be added to it; ``None`` for no limit.

    Attributes:
        sandbox: What runs here, once it was started, until it is stopped.
        growth: How much the workspace has grown.
        must_guard: Whether an interpreter is refused whose supervisor the code could tamper with.
    """

    def __init__(self, workspace: HostWorkspace, *, mib: int | None, files: int | None) -> None:
        self.workspace = workspace
        self.sandbox: Sandbox | None = None
        self._limits = mib, files
        self.growth = Growth(mib, files)
        self.must_guard = True

    @property
    @abstractmethod
    def loosenings(self) -> Sequence[str]:
        """Each setting that is weaker than the default, in words."""

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
            self.growth = Growth(*self._limits)
            await self.workspace.remove()
