"""Where code runs: a sandbox and its workspace, whatever runs in it."""

from __future__ import annotations

import logging
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from codeact_team.core.aio import Turns
from codeact_team.core.executor_interface import Workspace
from codeact_team.core.files import resolved
from codeact_team.errors import SandboxError
from codeact_team.executors.files.base import Files
from codeact_team.executors.files.given import GivenData
from codeact_team.executors.files.host import HostFiles
from codeact_team.executors.packages.provision import Provision
from codeact_team.executors.packages.requirements import Interpreter, Requested
from codeact_team.executors.settings import ExecutorConfig
from codeact_team.executors.work_files import WorkFiles
from codeact_team.executors.workspace import Growth, HostWorkspace, wide_directories
from codeact_team.sandbox.base import Sandbox, above_default

logger = logging.getLogger(__name__)


class Place(ABC):
    """A sandbox that starts when it is needed, with its workspace. For one caller at a time.

    Attributes:
        sandbox: What runs here, once it was started, until it is stopped.
        growth: How much the workspace has grown.
        copying: Whoever makes copies of what is in the workspace has the turn: what is counted before is so until then.
        files: What is in the workspace.
        must_guard: Whether an interpreter is refused whose supervisor the code could tamper with.
    """

    def __init__(self, config: ExecutorConfig, *, owner: int | None = None) -> None:
        self._settings = config
        self.workspace = HostWorkspace(config.work_dir, owner=owner)
        self.sandbox: Sandbox | None = None
        self.growth = self._nothing_grown()
        self.copying = Turns()
        self.must_guard = True
        mib, field = self._room()
        data = GivenData(
            [os.fspath(path) for path in config.data], mib=mib, files=config.workspace_files, field=field
        )
        self.files = WorkFiles(data, config.workspace_mib)
        self._packages = Provision(_requested(config), self._make_temporary, writable=self.writable)

    @property
    def loosenings(self) -> Sequence[str]:
        """Each setting that is weaker than the default, in words."""
        growth = above_default(self._settings, "workspace_mib", "workspace_files")
        return [*growth, *wide_directories({"work_dir": self._settings.work_dir})]

    @property
    def writable(self) -> Sequence[Path]:
        """The user's directories that the code can write to."""
        work_dir = self._settings.work_dir
        return [] if work_dir is None else [Path(work_dir)]

    @property
    def reached(self) -> Sequence[Path]:
        """What of this machine the code can read or write, but for a temporary workspace."""
        return self.writable

    @abstractmethod
    def _make_sandbox(self, packages: Path | None) -> Sandbox:
        """A new sandbox with a layer of packages, not started."""

    @abstractmethod
    def _make_temporary(self, workspace: Path) -> Sandbox:
        """A sandbox like it without packages; where it needs a directory as its workspace, this one."""

    @abstractmethod
    def host_path(self, file: str) -> str | None:
        """The host's name for a file of the workspace, where the workspace is a directory of the host."""

    def _room(self) -> tuple[int | None, str]:
        """How many MiB the workspace has for data, and the setting that says so."""
        return self._settings.workspace_mib, "workspace_mib"

    def _persistent(self) -> Files | None:
        """The workspace, if it may have been there before, with files in it."""
        work_dir = self._settings.work_dir
        return None if work_dir is None else HostFiles(Path(work_dir).absolute(), os.fspath(work_dir))

    def _reached(self) -> Files:
        """The workspace of the sandbox, which runs."""
        path = self.workspace.path
        return HostFiles(path.absolute(), str(path))

    @property
    def location(self) -> Workspace:
        """Where the workspace is."""
        if self._settings.work_dir is not None:
            return Workspace(resolved(self._settings.work_dir), lasts=True)
        is_made = self.sandbox is not None
        return Workspace(self.workspace.path if is_made else None, lasts=False)

    @property
    @abstractmethod
    def has_network(self) -> bool | None:
        """Whether code reaches a network; ``None`` where that is not known for certain."""

    @property
    @abstractmethod
    def is_contained(self) -> bool:
        """Whether code can change nothing but the workspace. Known once the sandbox runs."""

    @property
    @abstractmethod
    def memory_mib(self) -> int:
        """How much memory the code has."""

    @property
    def bound_to(self) -> str | None:
        """The setting, with its value, for which no sandbox that was started ahead will do; ``None`` if there is none."""
        work_dir = self._settings.work_dir
        return None if work_dir is None else f"work_dir: {work_dir}"

    @property
    def running(self) -> bool:
        """Whether the sandbox runs."""
        return self.sandbox is not None and self.sandbox.running

    @property
    def is_checked(self) -> bool:
        """Whether nobody has to ask if it :meth:`is_sound`."""
        return self._packages.is_checked

    @property
    def packages(self) -> Mapping[str, str]:
        """The packages that were provided: version by name."""
        return {} if self._packages.layer is None else self._packages.layer.packages

    @property
    def layer(self) -> Path | None:
        """Where they are; ``None`` without packages, or before they were provided."""
        return None if self._packages.layer is None else self._packages.layer.path

    @property
    def image(self) -> str | None:
        """See :attr:`Sandbox.image`."""
        return None if self.sandbox is None else self.sandbox.image

    @property
    def python_version(self) -> str | None:
        """See :attr:`Sandbox.python_version`."""
        return None if self.sandbox is None else self.sandbox.python_version

    @property
    def is_prepared(self) -> bool:
        """Whether the packages are there that the settings ask for."""
        return self._packages.is_provided

    async def python(self) -> Interpreter | None:
        """The Python of the sandbox, which need not run for this; ``None`` where there is none, or it cannot be asked."""
        try:
            return await self._packages.interpreter()
        except SandboxError as error:
            logger.debug("nothing is known of the sandbox's Python: %s", error)
            return None

    async def prepare(self, tell: Callable[[str], None]) -> None:
        """Get the packages now, rather than with the start.

        Args:
            tell: Gets a line about what is done, now and then, where that takes its time.

        Raises:
            SettingError: If there is data that cannot be given.
            SandboxError: If they cannot be had.
        """
        await self.files.check(self._persistent())
        await self.provide(tell)

    async def provide(self, tell: Callable[[str], None]) -> Path | None:
        """Get the packages; where they are, ``None`` without any. Arguments and errors are those of :meth:`prepare`."""
        return await self._packages.provide(tell)

    def take_over(self, other: Place) -> None:
        """Have the sandbox of another place, with its workspace; :meth:`start` does what is left to do.

        Args:
            other: One that has started it, with the same packages and settings but for data, and has none afterwards.
        """
        self.sandbox, other.sandbox = other.sandbox, None
        self.workspace, other.workspace = other.workspace, self.workspace
        if not self._settings.data:
            # else the data have to be put there first, from which on what is there is watched
            self.files, other.files = other.files, self.files
            self.growth, other.growth = other.growth, self.growth
        self._packages.begin_check()

    async def start(self, tell: Callable[[str], None]) -> None:
        """Start the sandbox, if it does not run.

        Args:
            tell: As for :meth:`prepare`.

        Raises:
            SettingError: If there is data that cannot be given.
            SandboxError: If it cannot start.
        """
        if self.sandbox is None:
            for loosening in self.loosenings:
                logger.warning("the sandbox is looser than its default: %s", loosening)
            self.sandbox = self._make_sandbox(await self.provide(tell))
        if not self.sandbox.running:
            self.files.sandbox_ended()
            await self.sandbox.start()
            # after the start, which it would slow down, and mostly while a model is asked for the first block
            self._packages.begin_check()
        await self.files.begin(self._reached(), tell)
        await self.growth.begin(self.sandbox.directories)

    async def is_sound(self) -> bool:
        """Whether code may run in the sandbox, which runs: its packages are what was made."""
        return await self._packages.is_whole()

    async def discard(self) -> None:
        """Stop the sandbox, which has packages, and get rid of these: a start gets a fresh one, and fresh packages."""
        assert self.sandbox is not None, "it runs"
        await self.sandbox.stop()
        self.sandbox = None
        await self._packages.discard()

    async def stop(self) -> None:
        """Stop the sandbox, and remove what is temporary."""
        sandbox, self.sandbox = self.sandbox, None
        try:
            if sandbox is not None:
                await sandbox.stop()
        finally:
            await self._packages.release()
            self.files.end()
            self.growth = self._nothing_grown()
            await self.workspace.remove()

    def _nothing_grown(self) -> Growth:
        return Growth(self._settings.workspace_mib, self._settings.workspace_files)


def _requested(config: ExecutorConfig) -> Requested:
    file = config.packages_file
    return Requested(tuple(config.packages), None if file is None else Path(file))
