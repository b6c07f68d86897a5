"""What there is to know of a sandbox before code runs in it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from packaging.utils import canonicalize_name

from codeact_team.executors.code_runner import AnyRunner
from codeact_team.executors.place import Place
from codeact_team.executors.settings import ExecutorConfig
from codeact_team.files.directories import opened
from codeact_team.files.snapshots import take
from codeact_team.missing_modules import WELL_KNOWN
from codeact_team.packages import Interpreter
from codeact_team.sandbox_description import DataFile, SandboxDescription

_Packages = tuple[tuple[str, str], ...]
"""Name and version of each."""

_MAX_SEEN_FILES = 1000

_NAME = re.compile(r"[a-z0-9-]{1,60}")
_VERSION = re.compile(r"[A-Za-z0-9.+!_-]{1,40}")
_TOOLS = ("pip", "setuptools", "wheel")


class Describing:
    """Describes the sandbox of a place, and keeps what it has found out until that is stopped.

    Args:
        config: The executor's settings.
        place: Where code runs.
        runner: How it runs there.
    """

    def __init__(self, config: ExecutorConfig, place: Place, runner: AnyRunner) -> None:
        self._config = config
        self._place = place
        self._runner = runner
        self._found: tuple[Interpreter | None, Sequence[DataFile]] | None = None

    async def describe(self) -> SandboxDescription:
        """The description. The packages must have been prepared.

        Raises:
            SettingError: If there is data that cannot be given.
        """
        if self._found is None:
            looks = self._config.data or self._config.work_dir is not None
            files = await asyncio.to_thread(self._find_files) if looks else ()
            self._found = await self._place.python(), files
        python, files = self._found
        return SandboxDescription(
            lives_on=self._runner.lives_on,
            python=None if python is None else _name_of(python),
            packages=self._packages(python),
            has_network=self._place.has_network,
            block_seconds=self._config.timeout,
            memory_mib=self._place.memory_mib,
            files=files[:_MAX_SEEN_FILES],
            omitted_files=None if len(files) > _MAX_SEEN_FILES else 0,
        )

    def forget(self) -> None:
        """The next description is of another sandbox."""
        self._found = None

    def _find_files(self) -> Sequence[DataFile]:
        """What will be in the workspace, what was given for it first."""
        given = self._place.files.described()
        paths = {file.path for file in given}
        work_dir = self._config.work_dir
        there = () if work_dir is None else _files_in(Path(work_dir))
        return [*given, *(file for file in there if file.path not in paths)]

    def _packages(self, python: Interpreter | None) -> Mapping[str, str]:
        own = () if python is None else python.packages
        return {**_ranked(tuple(self._place.packages.items()), own)}


@lru_cache(maxsize=16)
def _ranked(provided: _Packages, own: _Packages) -> Mapping[str, str]:
    """The packages, those first that are known best. Sandboxes of one config have the same."""
    # the code finds these first
    first = dict(_told(provided))
    order = {name: number for number, name in enumerate(WELL_KNOWN)}

    def rank(package: tuple[str, str]) -> tuple[int, bool, str]:
        name, _ = package
        return order.get(name, len(order)), name not in first, name

    return dict(sorted({**dict(_told(own)), **first}.items(), key=rank))


def _told(packages: _Packages) -> Iterator[tuple[str, str]]:
    """The packages by their common names, without what is no name or no version."""
    for name, version in packages:
        common = canonicalize_name(name)
        if common not in _TOOLS and _NAME.fullmatch(common) and _VERSION.fullmatch(version):
            yield common, version


def _name_of(python: Interpreter) -> str:
    kind = "" if python.implementation == "cpython" else f" ({python.implementation})"
    return f"Python {python.version}{kind}"


def _files_in(directory: Path) -> list[DataFile]:
    """The files in a directory, at most one more than are told; those nearest to its top first."""
    try:
        with opened(directory) as top:
            seen = take(top).files
    except OSError:
        # it is made with the start, or that tells what is wrong with it
        return []
    paths = [path for path in seen if not any(part.startswith(".") for part in path.split("/"))]
    paths.sort(key=lambda path: (path.count("/"), path))
    return [DataFile(path, seen[path].size) for path in paths[: _MAX_SEEN_FILES + 1]]
