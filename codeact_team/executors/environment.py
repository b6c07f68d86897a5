"""The environment of code: a sandbox, its workspace and its packages, whatever runs there."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from functools import lru_cache, partial
from pathlib import Path
from tempfile import gettempdir

from packaging.utils import canonicalize_name

from codeact_team.core.aio import FairLock
from codeact_team.core.execution import WELL_KNOWN
from codeact_team.core.network_events import RequestDenied
from codeact_team.core.sandbox_description import DataEntry, SandboxDescription
from codeact_team.errors import SandboxError, SettingError
from codeact_team.executors.egress import Egress
from codeact_team.executors.packages.provision import Provision, processes_in_throw_away
from codeact_team.executors.packages.requirements import PythonDescription, Requested
from codeact_team.executors.settings import ExecutorConfig
from codeact_team.executors.workspace.directory import Quota, WorkspaceDirectory, wide_directories
from codeact_team.executors.workspace.files import HostFiles, WorkspaceFiles, take_snapshot
from codeact_team.executors.workspace.given import Given, GivenData
from codeact_team.executors.workspace.preview import previews, readers_of, samples_of
from codeact_team.executors.workspace.telling import tell
from codeact_team.executors.workspace.workspace import Location, SandboxWorkspace
from codeact_team.files.opening import resolved
from codeact_team.network.rules import REPORT
from codeact_team.sandbox.base import Sandbox, above_default
from codeact_team.session.protocol import MIB
from codeact_team.text.visibility import readable
from codeact_team.tools.approvals import Pause

logger = logging.getLogger(__name__)

_NOT_READ = (
    "What is passed through unread is not recorded, so that code of a run that is resumed does not run again"
)


class Environment(ABC):
    """A sandbox that starts when it is needed, with its workspace. For one caller at a time.

    Attributes:
        turns: Held by the caller that runs code here, or uses the files.
        sandbox: The sandbox, from its start until it is stopped.
        workspace: The files of the code.
        directory: The directory of this machine that is the workspace, unless that is in a container.
        quota: Limits how much code adds to that.
        packages: The packages for the sandbox.
        egress: What code may reach of the network; ``None`` for nothing.
        copying: Held while the workspace is copied: a count made before stays true until then.
        must_guard: Whether to refuse an interpreter whose supervisor the code could tamper with.
    """

    def __init__(self, config: ExecutorConfig, *, owner: int | None = None) -> None:
        self._config = config
        self.turns: FairLock = FairLock()
        self.sandbox: Sandbox | None = None
        self.directory: WorkspaceDirectory = WorkspaceDirectory(config.work_dir, owner=owner)
        self.quota: Quota = self._new_quota()
        self.copying: FairLock = FairLock()
        self.must_guard = True
        data = self._given_data([os.fspath(path) for path in config.data])
        self.workspace: SandboxWorkspace = SandboxWorkspace(
            self.location, self.turns, data, config.workspace_mib
        )
        self.egress: Egress | None = None if config.egress is None else Egress(config)
        self._added: list[DataEntry] = []
        """What is told of the data that was added."""
        file = config.packages_file
        self._requested = Requested(tuple(config.packages), None if file is None else Path(file))
        self._readers: Sequence[str] | None = None
        self.packages: Provision = Provision(self._requested, self._make_temporary, writable=self.writable)
        self._described: tuple[PythonDescription | None, Sequence[DataEntry], Sequence[DataEntry]] | None = (
            None
        )

    @property
    def relaxations(self) -> Sequence[str]:
        """The settings that are weaker than the default, in words."""
        quota = above_default(self._config, "workspace_mib", "workspace_files")
        reaches = None if self.egress is None or self._config.egress in ([], REPORT) else self.egress.rules
        reached = [] if reaches is None else [f"egress: {reaches.in_words()}"]
        if reaches is not None and not reaches.opens_all:
            reached[0] += f" {_NOT_READ}"
        return [*quota, *reached, *wide_directories({"work_dir": self._config.work_dir})]

    @property
    def writable(self) -> Sequence[Path]:
        """The user's directories that the code can write to."""
        work_dir = self._config.work_dir
        return [] if work_dir is None else [Path(work_dir)]

    @property
    def reached(self) -> Sequence[Path]:
        """The paths of this machine that the code can read or write, without a temporary workspace."""
        return self.writable

    @abstractmethod
    def _make_sandbox(self, packages: Path | None) -> Sandbox:
        """Make a sandbox with a layer of packages. It is not started."""

    @abstractmethod
    def _make_temporary(self, workspace: Path, packages: Path | None = None) -> Sandbox:
        """Make such a sandbox for something else than the code. If it needs a directory as its workspace, it uses this one."""

    @abstractmethod
    def host_path(self, file: str) -> str | None:
        """The path on this machine of a file of the workspace; ``None`` if the workspace is in a container."""

    def _room(self) -> tuple[int | None, str]:
        """Return the MiB of data for which the workspace has room, and the setting that limits them."""
        return self._config.workspace_mib, "workspace_mib"

    def _given_data(self, paths: Sequence[str]) -> GivenData:
        mib, field = self._room()
        return GivenData(paths, mib=mib, files=self._config.workspace_files, field=field)

    def _files(self) -> WorkspaceFiles:
        """The files of the workspace of the sandbox, which runs."""
        return self._host_files()

    def _host_files(self) -> HostFiles:
        path = self.directory.path
        return HostFiles(path.absolute(), str(path))

    def location(self) -> Location:
        """Where the workspace is."""
        directory = self.directory
        if directory.lasts:
            return Location(resolved(directory.path), lasts=True, is_own=directory.is_own)
        return Location(directory.path if self.sandbox is not None else None)

    @property
    @abstractmethod
    def has_network(self) -> bool | None:
        """Whether code reaches a network; ``None`` if that is not known for certain."""

    @property
    @abstractmethod
    def is_contained(self) -> bool:
        """Whether code can change nothing but the workspace, and by requests that are effects. Known once the sandbox runs."""
        return self.egress is None or self.egress.rules.opens_all

    def performing(self, unit: str | None, pause: Pause) -> AbstractAsyncContextManager[None]:
        """Within it, code of a unit runs, whose requests are effects of the present context."""
        return nullcontext() if self.egress is None else self.egress.performing(unit, pause)

    def take_denials(self) -> Sequence[RequestDenied]:
        """Return what code was denied by the rules of ``egress`` since the last call of this, each once."""
        return () if self.egress is None else self.egress.take_denials()

    @property
    @abstractmethod
    def memory_mib(self) -> int:
        """The most memory that the code may use, in MiB."""

    @property
    def bound_to(self) -> str | None:
        """The setting, with its value, that rules out a sandbox started ahead; ``None`` without one."""
        work_dir = self._config.work_dir
        return None if work_dir is None else f"work_dir: {work_dir}"

    @property
    def running(self) -> bool:
        """Whether the sandbox runs."""
        return self.sandbox is not None and self.sandbox.running

    async def prepare(self, report: Callable[[str], None]) -> None:
        """Get the packages before the start. ``report`` gets a line of progress now and then, if that takes its time.

        Raises a ``SettingError`` if data cannot be given, and a ``SandboxError`` if the packages cannot be had.
        """
        # only such a workspace can have files of others
        is_shared = not self.directory.is_own
        await self.workspace.check(self._host_files() if is_shared else None)
        await asyncio.to_thread(self._refuse_too_much, await self.workspace.given())
        await self.provide(report)

    def _refuse_too_much(self, given: Sequence[Given]) -> None:
        """Refuse data for which the disk of the workspace has no room, before a model is asked."""
        if not given or (disk := self._disk()) is None:
            return
        work_dir = self._config.work_dir
        size = sum(
            one.size for one in given if work_dir is None or not _has_size(Path(work_dir, one.path), one.size)
        )
        if size > (free := shutil.disk_usage(disk).free):
            raise SettingError(
                f"data: the disk of the workspace, {disk}, has no room for it: it needs {size // MIB:,} MiB, "
                f"and {free // MIB:,} MiB are free"
            )

    def _disk(self) -> Path | None:
        """A directory on the disk of the workspace; ``None`` if that is in a container."""
        place = (self.directory.path if self.directory.lasts else Path(gettempdir())).absolute()
        return next((path for path in [place, *place.parents] if path.is_dir()), None)

    @property
    def is_prepared(self) -> bool:
        """Whether :meth:`prepare` has nothing to do any more."""
        return self.packages.is_provided and (self._readers is not None or not self._config.data)

    @property
    def readers(self) -> Sequence[str]:
        """The packages that were added as some of the data cannot be read without them. Known once it is prepared."""
        return self._readers or ()

    async def provide(self, report: Callable[[str], None]) -> Path | None:
        """Get the packages, and those that read the data. Raises as :meth:`prepare`, but not for the latter."""
        if self._readers is None:
            wanted = await self._missing_readers()
            self._readers = list(wanted)
            if wanted:
                named = ", ".join(f"{package} (for {readable(path)})" for package, path in wanted.items())
                logger.info("added to the packages of the code, to read the data: %s", named)
                self.packages.request(self._with_readers())
        try:
            return await self.packages.provide(report)
        except SandboxError as error:
            if not self._readers:
                raise
            names, self._readers = ", ".join(self._readers), []
            self.packages.request(self._requested)
            path = await self.packages.provide(report)
            logger.warning(
                "the code has no %s to read the data with: give the data as CSV, use an image that has the package, or have "
                "this machine reach an index of packages: %s",
                names,
                error,
            )
            return path

    def _with_readers(self) -> Requested:
        return Requested((*self._requested.requirements, *self.readers), self._requested.file)

    async def _missing_readers(self) -> Mapping[str, str]:
        """The packages that read the data and are neither asked for nor in the sandbox, each with a file that needs it."""
        wanted = readers_of(await self.workspace.given())
        if not wanted or (python := await self._python()) is None:
            return {}
        own = {canonicalize_name(name) for name, _ in python.packages}
        there = own | await asyncio.to_thread(self._requested.names)
        return {package: path for package, path in wanted.items() if package not in there}

    async def describe(self, *, lives_on: bool) -> SandboxDescription:
        """Describe the sandbox, which need not run. It is asked once until it is stopped. Raises a ``SettingError``."""
        if self._described is None:
            given = await self.workspace.given()
            data = await self._data(given)
            there = () if self.directory.is_own else await asyncio.to_thread(self._other_files, given)
            self._described = await self._python(), data, there
        python, data, there = self._described
        data = [*data, *self._added]
        files = [*data, *there]
        own = () if python is None else python.packages
        return SandboxDescription(
            lives_on=lives_on,
            python=None if python is None else python.name,
            packages={**_ranked(tuple(self.packages.versions.items()), own)},
            has_network=self.has_network,
            reaches=None if self.egress is None else self.egress.rules.in_words(),
            block_seconds=self._config.timeout,
            memory_mib=self.memory_mib,
            files=files[:_MAX_SEEN_FILES],
            given=len(data),
            omitted_files=None if len(files) > _MAX_SEEN_FILES else 0,
        )

    async def add_data(self, path: str, report: Callable[[str], None]) -> Sequence[DataEntry]:
        """Copy data into the workspace of the sandbox, which runs. For the holder of the turns. Returns what a model is told.

        Raises a ``SettingError`` if it cannot be given, and a ``SandboxError`` if it cannot be copied.
        """
        given = await self._given_data([path]).found()
        await asyncio.to_thread(self._refuse_too_much, given)
        async with self.quota.not_counting():
            await self.workspace.add_data(given, report)
        return await self._data(given)

    def know_data(self, entries: Sequence[DataEntry]) -> None:
        """Describe data that was added."""
        self._added += [entry for entry in entries if entry not in self._added]

    async def _python(self) -> PythonDescription | None:
        try:
            return await self.packages.interpreter()
        except SandboxError as error:
            logger.debug("the sandbox's Python cannot be described: %s", error)
            return None

    async def _data(self, given: Sequence[Given]) -> Sequence[DataEntry]:
        """What is told of the data, with the columns and first rows of tables that no host should read itself."""
        told = await asyncio.to_thread(tell, given) if given else ()
        samples = samples_of(told)
        found: Mapping[str, Sequence[str]] = {}
        if samples:
            packages = self.packages.path
            make = partial(self._make_temporary, packages=packages)
            try:
                found = await previews([*samples.values()], packages, lambda: processes_in_throw_away(make))
            except SandboxError as error:
                logger.debug("the data has no previews: %s", error)
        return [
            one.with_preview(sample.path, found.get(sample.path, ()))
            if (sample := samples.get(one.entry.path)) is not None
            else one.entry
            for one in told
        ]

    def _other_files(self, given: Sequence[Given]) -> Sequence[DataEntry]:
        """The files that are in the workspace at the start beside the data. Blocks."""
        paths = {one.path for one in given}
        work_dir = self._config.work_dir
        there = () if work_dir is None else _files_in(Path(work_dir))
        return [file for file in there if file.path not in paths]

    def take_over(self, other: Environment) -> None:
        """Take the sandbox and the workspace of an environment with the same packages and settings, except for data.

        :meth:`start` does the rest. The other has no sandbox afterwards.
        """
        self.sandbox, other.sandbox = other.sandbox, None
        if self.egress is not None and other.egress is not None:
            self.egress.take_over(other.egress)
        self.directory, other.directory = other.directory, self.directory
        if not self._config.data:
            # else the data has to be put there first, and changes are those since then
            self.workspace.take_over(other.workspace)
            self.quota, other.quota = other.quota, self.quota
        self.packages.begin_check()

    def refusal_of(self, unguarded: str | None) -> str | None:
        """Why no code may run below a supervisor that it could tamper with, as ``unguarded`` says; a warning where it may."""
        # it could forge the reports of later blocks
        if unguarded is None or self.must_guard:
            return unguarded
        logger.warning("%s", unguarded)
        return None

    async def start(self, report: Callable[[str], None]) -> None:
        """Start the sandbox unless it runs. Raises as :meth:`prepare`, or if it cannot start."""
        if self.sandbox is None:
            for relaxation in self.relaxations:
                logger.warning("the sandbox is looser than its default: %s", relaxation)
            self.sandbox = self._make_sandbox(await self.provide(report))
        if not self.sandbox.running:
            self.workspace.sandbox_ended()
            if self.egress is not None:
                self.sandbox.way_out = await self.egress.open(self.packages.path)
            await self.sandbox.start()
            # after the start, which it would slow down, and mostly while a model is asked for the first block
            self.packages.begin_check()
        await self.workspace.begin(self._files(), report)
        await self.quota.begin(self.sandbox.directories, self.sandbox.temporary)

    async def discard(self) -> None:
        """Stop the sandbox and remove its packages: a start gets a fresh sandbox and fresh packages."""
        assert self.sandbox is not None, "it runs"
        await self.sandbox.stop()
        self.sandbox = None
        if self.egress is not None:
            await self.egress.close()
        await self.packages.discard()

    async def stop(self) -> None:
        """Stop the sandbox, and remove temporary files."""
        sandbox, self.sandbox = self.sandbox, None
        try:
            if sandbox is not None:
                await sandbox.stop()
        finally:
            self._described = None
            if self.egress is not None:
                await self.egress.close()
            await self.packages.release()
            self.workspace.end()
            self.quota = self._new_quota()
            await self.directory.remove()

    def _new_quota(self) -> Quota:
        return Quota(self._config.workspace_mib, self._config.workspace_files)


_Packages = tuple[tuple[str, str], ...]
"""Name and version of each."""

_MAX_SEEN_FILES = 1000

_NAME = re.compile(r"[a-z0-9-]{1,60}")
_VERSION = re.compile(r"[A-Za-z0-9.+!_-]{1,40}")
_TOOLS = ("pip", "setuptools", "wheel")


@lru_cache(maxsize=16)
def _ranked(provided: _Packages, own: _Packages) -> Mapping[str, str]:
    """The packages, the well-known first. Cached, as the sandboxes of one config have the same packages."""
    # the code finds these first
    first = dict(_shown(provided))
    order = {name: number for number, name in enumerate(WELL_KNOWN)}

    def rank(package: tuple[str, str]) -> tuple[int, bool, str]:
        name, _ = package
        return order.get(name, len(order)), name not in first, name

    return dict(sorted({**dict(_shown(own)), **first}.items(), key=rank))


def _shown(packages: _Packages) -> Iterator[tuple[str, str]]:
    """The packages by their common names, without odd names and versions."""
    for name, version in packages:
        common = canonicalize_name(name)
        if common not in _TOOLS and _NAME.fullmatch(common) and _VERSION.fullmatch(version):
            yield common, version


def _has_size(path: Path, size: int) -> bool:
    try:
        return os.lstat(path).st_size == size
    except OSError:
        return False


def _files_in(directory: Path) -> list[DataEntry]:
    """The files in a directory, those nearest to its top first; at most one more than are shown."""
    try:
        seen = take_snapshot(directory).files
    except OSError:
        # the start makes it, or shows the error
        return []
    paths = [path for path in seen if not any(part.startswith(".") for part in path.split("/"))]
    paths.sort(key=lambda path: (path.count("/"), path))
    return [DataEntry(path, seen[path].size) for path in paths[: _MAX_SEEN_FILES + 1]]
