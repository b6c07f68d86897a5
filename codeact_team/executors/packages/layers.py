"""Layers: directories of packages that are made once, checked, and used by many sandboxes."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from importlib import resources
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple

import platformdirs
from pydantic import BaseModel, ValidationError

from codeact_team.core.aio import FairLock, to_the_end
from codeact_team.errors import SandboxError
from codeact_team.executors.packages.installer import install
from codeact_team.executors.packages.requirements import PythonDescription, Requested
from codeact_team.files import trees
from codeact_team.files.atomic import write_whole
from codeact_team.sandbox.base import PACKAGES_START
from codeact_team.sandbox.system.kernel import is_running
from codeact_team.sandbox.temporary import lock

_MAX_TOLD = 20


class _File(NamedTuple):
    """A file of a layer: size in bytes, time of its last change in ns, digest of its content."""

    size: int
    changed: int
    digest: str


_Manifest = dict[str, _File]
"""The files by their paths within the layer."""


def _make_manifest(directory: Path) -> _Manifest:
    """Make the manifest of a directory, in the order of the paths. Reads every file."""
    found: _Manifest = {}
    for path, status in files_in(directory):
        found[path] = _File(status.st_size, status.st_mtime_ns, _digest(directory / path))
    return dict(sorted(found.items()))


def _stamp_of(directory: Path) -> str:
    """A digest of the paths, sizes, times and permissions of the files in a directory. Reads no file.

    Directories with different stamps may still have the same content.
    """
    seen = [
        f"{path}\0{status.st_size} {status.st_mtime_ns} {status.st_mode}"
        for path, status in files_in(directory)
    ]
    seen.sort()
    return hashlib.sha256("\n".join(seen).encode(errors="surrogateescape")).hexdigest()


def _digest_of(manifest: _Manifest) -> str:
    """A digest of the content, which is the same whenever and wherever the files were made."""
    # two compilations of one module may differ
    content = "".join(
        f"{path}\0{file.digest}\n" for path, file in manifest.items() if not path.endswith(".pyc")
    )
    return hashlib.sha256(content.encode(errors="surrogateescape")).hexdigest()


def _differences(directory: Path, manifest: _Manifest, *, thorough: bool) -> list[str]:
    """The first paths at which a directory differs from its manifest. If ``thorough``, every file is read."""
    left = dict(manifest)
    different: list[str] = []
    for path, status in files_in(directory):
        known = left.pop(path, None)
        if known is None or not _is(directory / path, status, _File(*known), thorough=thorough):
            different.append(path)
        if len(different) >= _MAX_TOLD:
            return different
    return [*different, *left][:_MAX_TOLD]


def _is(path: Path, status: os.stat_result, known: _File, *, thorough: bool) -> bool:
    if not stat.S_ISREG(status.st_mode) or status.st_size != known.size:
        return False
    looks_the_same = status.st_mtime_ns == known.changed
    return (looks_the_same and not thorough) or _digest(path) == known.digest


def files_in(directory: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Paths and status of everything below a directory except directories. Follows no links."""
    with trees.opened_own(directory) as top:
        for inner, name, status in trees.files_below(top):
            yield "/".join([*inner.names, name]), status


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_PACKAGES = "site-packages"
_ABOUT_THE_HOST = ("direct_url.json", "uv_cache.json", "REQUESTED")

Compile = Callable[[Path], Awaitable[None]]
"""Compiles the modules in a directory, by the Python of the sandbox."""

_making = FairLock()


class Layer(BaseModel):
    """Packages for one kind of Python, unpacked and compiled.

    Attributes:
        path: The directory.
        packages: Version by name.
        interpreter: The Python that they fit, in words.
        size: In bytes.
        stamp: As of :func:`_stamp_of`, when it was made.
    """

    path: Path
    packages: dict[str, str]
    interpreter: str
    size: int
    stamp: str

    @property
    def used(self) -> float:
        """When a sandbox has used it last, in seconds since the epoch. Blocks."""
        return self.path.stat().st_mtime

    @contextmanager
    def held(self) -> Generator[None]:
        """A context in which the layer cannot be removed. Raises a ``FileNotFoundError`` if it just was."""
        descriptor = os.open(self.path, trees.DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            if not os.path.samestat(os.fstat(descriptor), os.stat(self.path)):
                raise FileNotFoundError(self.path)
            os.utime(descriptor)
            yield
        finally:
            os.close(descriptor)


class Layers:
    """The layers of one user, in the directory ``root``; by default below the user's cache directory."""

    def __init__(self, root: Path | None = None) -> None:
        self.root: Path = root or platformdirs.user_cache_path("codeact-team") / "packages"

    def all(self) -> list[Layer]:
        """All layers."""
        names = sorted(path.stem for path in (self.root / "layers").glob("*.json"))
        return [layer for name in names if (layer := self._load(name)) is not None]

    def interpreter(self, identity: str) -> PythonDescription | None:
        """The kept description of a Python, if any."""
        try:
            return PythonDescription.model_validate_json((self.root / "interpreters" / identity).read_bytes())
        except (OSError, ValidationError):
            return None

    def keep_interpreter(self, identity: str, interpreter: PythonDescription) -> None:
        """Keep the description of a Python."""
        _write(self.root / "interpreters" / identity, interpreter.model_dump_json())

    def find(self, requested: Requested, interpreter: PythonDescription) -> Layer | None:
        """The layer with the packages, if it exists. Raises a ``SandboxError`` if such a Python can have none."""
        return self._requested(self._request_path(requested, interpreter))

    async def provide(
        self,
        requested: Requested,
        interpreter: PythonDescription,
        compile_modules: Compile,
        report: Callable[[str], None],
    ) -> Layer:
        """Find or make the layer with the packages for a Python. It is not checked against its manifest.

        ``report`` gets a line of progress now and then. Raises a ``SandboxError`` if the packages cannot be had.
        """
        request = self._request_path(requested, interpreter)
        if (layer := self._requested(request)) is not None:
            return layer
        # two processes may make the same one; in this one, the second finds it
        async with _making:
            if (layer := self._requested(request)) is None:
                layer = await self._make(requested, interpreter, compile_modules, report)
                _write(request, layer.path.name)
        return layer

    def changes(self, layer: Layer, *, thorough: bool) -> list[str]:
        """The first paths in a layer that have changed since it was made. If ``thorough``, every file is read. Blocks."""
        try:
            if not thorough and _stamp_of(layer.path) == layer.stamp:
                return []
            manifest: _Manifest = json.loads(self._manifest_path(layer.path.name).read_bytes())
            return _differences(layer.path, manifest, thorough=thorough)
        except (FileNotFoundError, ValueError):
            return ["its manifest"]
        except OSError as error:
            return [f"what cannot be read: {error}"]

    def remove(self, layer: Layer) -> bool:
        """Remove a layer unless a sandbox uses it. Returns whether it is gone. Blocks."""
        try:
            descriptor = os.open(layer.path, trees.DIRECTORY)
        except FileNotFoundError:
            self._record_path(layer.path.name).unlink(missing_ok=True)
            return True
        try:
            if not lock(descriptor):
                return False
            # first the record, without which it is not found
            self._record_path(layer.path.name).unlink(missing_ok=True)
            self._manifest_path(layer.path.name).unlink(missing_ok=True)
            trees.remove(str(layer.path))
        finally:
            os.close(descriptor)
        return True

    def remove_unfinished(self) -> None:
        """Remove unfinished layers of processes that were killed. Blocks."""
        for building in self.root.glob("building-*"):
            if not is_running(int(building.name.split("-")[1])):
                _remove(building)

    async def _make(
        self,
        requested: Requested,
        interpreter: PythonDescription,
        compile_modules: Compile,
        report: Callable[[str], None],
    ) -> Layer:
        building = self.root / f"building-{os.getpid()}-{secrets.token_hex(4)}"
        building.mkdir(mode=0o700, parents=True)
        try:
            await install(requested, interpreter, building / _PACKAGES, report)
            await asyncio.to_thread(_tidy, building)
            report("compiling the modules in the sandbox")
            await compile_modules(building)
            return await to_the_end(asyncio.to_thread(self._keep, building, interpreter))
        finally:
            await to_the_end(asyncio.to_thread(_remove, building))

    def _keep(self, building: Path, interpreter: PythonDescription) -> Layer:
        packages = {
            one.metadata["Name"]: one.version for one in distributions(path=[str(building / _PACKAGES)])
        }
        _make_readable(building)
        manifest = _make_manifest(building)
        name = _digest_of(manifest)[:32]
        layer = Layer(
            path=self.root / "layers" / name,
            packages=dict(sorted(packages.items())),
            interpreter=str(interpreter),
            size=sum(file.size for file in manifest.values()),
            stamp=_stamp_of(building),
        )
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # among processes
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            return self._put_in_place(building, layer, manifest)
        finally:
            os.close(descriptor)

    def _put_in_place(self, building: Path, layer: Layer, manifest: _Manifest) -> Layer:
        name = layer.path.name
        if (same := self._load(name)) is not None and not self.changes(same, thorough=True):
            return same
        layer.path.parent.mkdir(mode=0o700, exist_ok=True)
        if not self.remove(layer):
            raise SandboxError(
                f"the packages in {layer.path} were changed, and other sandboxes use them: stop those first"
            )
        trees.move(str(building), str(layer.path))
        _write(self._manifest_path(name), json.dumps(manifest))
        _write(self._record_path(name), layer.model_dump_json())
        return layer

    def _requested(self, request: Path) -> Layer | None:
        try:
            return self._load(request.read_text())
        except FileNotFoundError:
            return None

    def _load(self, name: str) -> Layer | None:
        try:
            layer = Layer.model_validate_json(self._record_path(name).read_bytes())
        except (FileNotFoundError, ValidationError):
            return None
        path = self.root / "layers" / name
        # the cache may have been moved, or tidied by hand
        return layer.model_copy(update={"path": path}) if path.is_dir() else None

    def _request_path(self, requested: Requested, interpreter: PythonDescription) -> Path:
        return self.root / "requests" / requested.digest(interpreter)

    def _record_path(self, name: str) -> Path:
        return self.root / "layers" / f"{name}.json"

    def _manifest_path(self, name: str) -> Path:
        return self.root / "manifests" / f"{name}.json"


def _tidy(building: Path) -> None:
    """Remove files about this machine, and add the module that lets Python find the packages."""
    packages = building / _PACKAGES
    for path, status in files_in(packages):
        if not stat.S_ISREG(status.st_mode):
            raise SandboxError(
                f"the packages cannot be kept: {packages / path} is neither a file nor a directory"
            )
    # scripts name the Python of this machine
    _remove(packages / "bin")
    for name in _ABOUT_THE_HOST:
        for file in packages.glob(f"*.dist-info/{name}"):
            file.unlink()
    start = building / PACKAGES_START
    start.mkdir()
    finder = resources.files(__name__.rpartition(".")[0]) / "inside" / "sitecustomize.py"
    (start / "sitecustomize.py").write_text(finder.read_text())


def _make_readable(building: Path) -> None:
    """Let every user read a layer, as code in a sandbox may be any user, and no user write its files."""
    with trees.opened_own(building) as top:
        for directory in trees.walk(top):
            os.fchmod(directory.descriptor, 0o755)
            for name, status in directory.entries():
                if stat.S_ISDIR(status.st_mode):
                    directory.enter(name, status)
                    continue
                executable = status.st_mode & stat.S_IXUSR
                os.chmod(name, 0o555 if executable else 0o444, dir_fd=directory.descriptor)


def _remove(directory: Path) -> None:
    with suppress(OSError):
        trees.remove(str(directory))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with trees.opened_own(path.parent) as directory:
        write_whole(directory, path.name, text.encode(errors="surrogateescape"))
