"""Layers: directories of packages that are made once, checked, and used by many sandboxes."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import secrets
import stat
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import resources
from importlib.metadata import distributions
from pathlib import Path

import platformdirs
from pydantic import BaseModel, ValidationError

from codeact_team.core.aio import FairLock, to_the_end
from codeact_team.errors import SandboxError
from codeact_team.executors.packages.installer import install
from codeact_team.executors.packages.manifests import (
    Manifest,
    differences,
    digest_of,
    files_in,
    read_manifest,
    stamp_of,
)
from codeact_team.executors.packages.requirements import PythonDescription, Requested
from codeact_team.executors.packages.wheels import (
    PACKAGES,
    KeptWheels,
    Wheel,
    copied,
    path_in,
    record_lines,
    wheels_in,
)
from codeact_team.files import trees
from codeact_team.files.atomic import write_whole
from codeact_team.sandbox.base import PACKAGES_START
from codeact_team.sandbox.system.kernel import is_running
from codeact_team.sandbox.temporary import lock

_ABOUT_THE_HOST = ("direct_url.json", "uv_cache.json", "REQUESTED")

Compile = Callable[[Sequence[Path]], Awaitable[None]]
"""Compiles modules, by the Python of a sandbox that sees no others, and stores the result where Python looks for it."""

_making = FairLock()


class Layer(BaseModel):
    """Packages for one kind of Python, unpacked and compiled.

    Attributes:
        path: The directory.
        packages: Version by name.
        interpreter: The Python that they fit, in words.
        size: In bytes.
        stamp: As of :func:`stamp_of`, when it was made.
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

    def size(self) -> int:
        """Bytes of all layers. A file that several have counts once. Blocks."""
        found: dict[int, int] = {}
        for layer in self.all():
            # somebody may remove it meanwhile
            with suppress(FileNotFoundError):
                found |= {status.st_ino: status.st_size for _, status in files_in(layer.path)}
        return sum(found.values())

    def interpreter(self, identity: str) -> PythonDescription | None:
        """The kept description of a Python, if any."""
        try:
            return PythonDescription.model_validate_json((self.root / "interpreters" / identity).read_bytes())
        except (OSError, ValidationError):
            return None

    def keep_interpreter(self, identity: str, interpreter: PythonDescription) -> None:
        """Keep the description of a Python."""
        _write(self.root / "interpreters" / identity, interpreter.model_dump_json())

    def find(self, requested: Requested, python: str) -> Layer | None:
        """The layer with the packages for the Python with this key, if it exists."""
        return self._requested(self._request_path(requested, python))

    async def provide(
        self,
        requested: Requested,
        interpreter: PythonDescription,
        python: str,
        compile_modules: Compile,
        report: Callable[[str], None],
    ) -> Layer:
        """Find or make the layer with the packages for a Python. It is not checked against its manifest.

        ``python`` is its key, and ``report`` gets a line of progress now and then. Raises a ``SandboxError`` if the packages cannot be had.
        """
        request = self._request_path(requested, python)
        if (layer := self._requested(request)) is not None:
            return layer
        # two processes may make the same one; in this one, the second finds it
        async with _making:
            if (layer := self._requested(request)) is None:
                layer = await self._make(requested, interpreter, python, compile_modules, report)
                _write(request, layer.path.name)
        return layer

    def changes(self, layer: Layer, *, thorough: bool) -> list[str]:
        """The first paths in a layer that have changed since it was made. If ``thorough``, every file is read. Blocks."""
        try:
            if not thorough and stamp_of(layer.path) == layer.stamp:
                return []
            manifest = read_manifest(self._manifest_path(layer.path.name))
            return differences(layer.path, manifest, thorough=thorough)
        except (FileNotFoundError, ValueError):
            return ["its manifest"]
        except OSError as error:
            return [f"unreadable files: {error}"]

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
        python: str,
        compile_modules: Compile,
        report: Callable[[str], None],
    ) -> Layer:
        building = self.root / f"building-{os.getpid()}-{secrets.token_hex(4)}"
        building.mkdir(mode=0o700, parents=True)
        try:
            unpacked, made = building / "unpacked", building / "layer"
            await install(requested, interpreter, unpacked / PACKAGES, report)
            await to_the_end(asyncio.to_thread(_tidy, unpacked))
            manifest, new = await to_the_end(asyncio.to_thread(self._fill, made, unpacked, python))
            if modules := [[made / path for path in wheel.modules] for wheel in new if wheel.modules]:
                report("compiling the modules in the sandbox")
                await _compile_side_by_side(modules, compile_modules)
            for wheel in new:
                manifest |= await asyncio.to_thread(wheel.with_compiled, made, interpreter.cache_tag)
            return await to_the_end(asyncio.to_thread(self._keep, made, manifest, interpreter))
        finally:
            await to_the_end(asyncio.to_thread(_remove, building))

    def _fill(self, made: Path, unpacked: Path, python: str) -> tuple[Manifest, list[Wheel]]:
        """Put wheels into a new layer: from other layers with a part of the manifest, or new, which are to be compiled."""
        kept = KeptWheels(self._manifests())
        manifest: Manifest = {}
        new: list[Wheel] = []
        for wheel in wheels_in(unpacked, python):
            if (linked := kept.link(wheel.key, made)) is None:
                new.append(copied(wheel, unpacked, made, python))
            else:
                manifest |= linked
        return manifest, new

    def _manifests(self) -> Iterator[tuple[Path, Manifest]]:
        for layer in self.all():
            # one that is damaged is told when its layer is used
            with suppress(FileNotFoundError, ValueError):
                yield layer.path, read_manifest(self._manifest_path(layer.path.name))

    def _keep(self, made: Path, manifest: Manifest, interpreter: PythonDescription) -> Layer:
        packages = {one.metadata["Name"]: one.version for one in distributions(path=[str(made / PACKAGES)])}
        _make_readable(made)
        manifest = dict(sorted(manifest.items()))
        name = digest_of(manifest)[:32]
        layer = Layer(
            path=self.root / "layers" / name,
            packages=dict(sorted(packages.items())),
            interpreter=str(interpreter),
            size=sum(file.size for file in manifest.values()),
            stamp=stamp_of(made),
        )
        descriptor = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            # among processes
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            return self._put_in_place(made, layer, manifest)
        finally:
            os.close(descriptor)

    def _put_in_place(self, made: Path, layer: Layer, manifest: Manifest) -> Layer:
        name = layer.path.name
        if (same := self._load(name)) is not None and not self.changes(same, thorough=True):
            return same
        layer.path.parent.mkdir(mode=0o700, exist_ok=True)
        if not self.remove(layer):
            raise SandboxError(
                f"the packages in {layer.path} were changed, and other sandboxes use them: stop those first"
            )
        trees.move(str(made), str(layer.path))
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

    def _request_path(self, requested: Requested, python: str) -> Path:
        return self.root / "requests" / requested.digest(python)

    def _record_path(self, name: str) -> Path:
        return self.root / "layers" / f"{name}.json"

    def _manifest_path(self, name: str) -> Path:
        return self.root / "manifests" / f"{name}.json"


async def _compile_side_by_side(wheels: Sequence[Sequence[Path]], compile_modules: Compile) -> None:
    """Compile the modules of each wheel by itself, as many at once as this machine has processors, the largest first."""
    places = FairLock(os.cpu_count() or 1)

    async def compile_one(modules: Sequence[Path]) -> None:
        async with places:
            await compile_modules(modules)

    try:
        async with asyncio.TaskGroup() as group:
            for modules in sorted(wheels, key=len, reverse=True):
                group.create_task(compile_one(modules))
    except BaseExceptionGroup as failures:
        # what else has failed meanwhile has failed for the same reason, such as an engine that is gone
        raise failures.exceptions[0] from None


def _tidy(directory: Path) -> None:
    """Remove files about this machine, and add the module that lets Python find the packages."""
    packages = directory / PACKAGES
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
    there: set[str] = set()
    for path, _ in [*files_in(packages)]:
        if "__pycache__" in path.split("/"):
            # what runs is compiled here, from what can be read
            (packages / path).unlink()
        else:
            there.add(path)
    for record in packages.glob("*.dist-info/RECORD"):
        # else it says whether its wheel was asked for, or is only needed
        kept = [f"{line}\n" for line in record_lines(record) if path_in(line) in there]
        record.unlink()
        record.write_text("".join(kept), errors="surrogateescape")
    start = directory / PACKAGES_START
    start.mkdir()
    finder = resources.files(__name__.rpartition(".")[0]) / "inside" / "sitecustomize.py"
    (start / "sitecustomize.py").write_text(finder.read_text())


def _make_readable(layer: Path) -> None:
    """Let every user read a layer, as code in a sandbox may be any user, and no user write its files."""
    with trees.opened_own(layer) as top:
        for directory in trees.walk(top):
            os.fchmod(directory.descriptor, 0o755)
            for name, status in directory.entries():
                if stat.S_ISDIR(status.st_mode):
                    directory.enter(name, status)
                    continue
                mode = 0o555 if status.st_mode & stat.S_IXUSR else 0o444
                if stat.S_IMODE(status.st_mode) != mode:
                    os.chmod(name, mode, dir_fd=directory.descriptor)


def _remove(directory: Path) -> None:
    with suppress(OSError):
        trees.remove(str(directory))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with trees.opened_own(path.parent) as directory:
        write_whole(directory, path.name, text.encode(errors="surrogateescape"))
