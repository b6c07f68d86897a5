"""Provides a sandbox with its layer of packages."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from functools import partial
from importlib import resources
from pathlib import Path

from codeact_team.core.aio import FairLock, to_the_end
from codeact_team.errors import SandboxError
from codeact_team.executors.packages.layers import Layer, Layers
from codeact_team.executors.packages.requirements import (
    MAX_DESCRIPTION_BYTES,
    PythonDescription,
    Requested,
    describing,
    read_description,
)
from codeact_team.executors.packages.wheels import compiled_path
from codeact_team.sandbox.base import Sandbox
from codeact_team.sandbox.processes import ProcessRequest
from codeact_team.sandbox.temporary import TemporaryDirectory
from codeact_team.session.processes import ProcessServer, serving_alone

_MAX_COMPILED_BYTES = 256 * 1024 * 1024
_LENGTH = 4


async def _compile_modules(processes: ProcessServer, modules: Sequence[Path], cache_tag: str) -> None:
    """Compile modules in a sandbox, and store the result where Python looks for it.

    ``cache_tag`` is the name of the sandbox's Python in names of files, such as ``cpython-311``. Raises a ``SandboxError``
    if the sandbox does not compile them.
    """
    program = (resources.files(__name__.rpartition(".")[0]) / "inside" / "compile.py").read_text()
    request = ProcessRequest([processes.python, "-I", "-S", "-W", "ignore", "-c", program], stderr="together")
    answers = _Answers(modules, cache_tag)
    try:
        await processes.run(request, _sources(modules), answers.take)
    except OSError as error:
        raise SandboxError(f"the sandbox's Python does not compile the packages: {error}") from error
    answers.check()


async def _sources(modules: Sequence[Path]) -> AsyncGenerator[bytes]:
    for module in modules:
        source = module.read_bytes()
        yield len(source).to_bytes(_LENGTH, "big") + source


class _Answers:
    """Stores compiled modules as they come, each behind its length."""

    def __init__(self, modules: Sequence[Path], cache_tag: str) -> None:
        self._left = deque(modules)
        self._cache_tag = cache_tag
        self._data = bytearray()

    async def take(self, stream: str, piece: bytes) -> None:
        self._data += piece
        while self._left and len(self._data) >= _LENGTH:
            end = _LENGTH + int.from_bytes(self._data[:_LENGTH], "big")
            if end > _MAX_COMPILED_BYTES:
                self.check()
            if len(self._data) < end:
                return
            self._store(self._left.popleft(), bytes(self._data[_LENGTH:end]))
            del self._data[:end]

    def _store(self, module: Path, compiled: bytes) -> None:
        if compiled:
            path = compiled_path(module, self._cache_tag)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(compiled)

    def check(self) -> None:
        """Raise a ``SandboxError`` if a module is left."""
        if self._left:
            said = bytes(self._data[-300:]).decode(errors="replace").strip()
            raise SandboxError(f"the sandbox's Python does not compile the packages; it says: {said!r}")


logger = logging.getLogger(__name__)

_NO_WORKSPACE = Path(os.devnull)
"""The workspace of a sandbox that is never started."""


class Provision:
    """Packages for the sandboxes of one executor. The present ``layer`` has them, until it is released.

    Args:
        requested: The packages.
        make_sandbox: Makes a sandbox without packages, which may use the given directory as its workspace.
        layers: The layers of the user.
        writable: Directories that code can write to, in the sandbox that gets the packages.
    """

    def __init__(
        self,
        requested: Requested,
        make_sandbox: Callable[[Path], Sandbox],
        layers: Layers | None = None,
        *,
        writable: Sequence[Path] = (),
    ) -> None:
        self._requested = requested
        self._make_sandbox = make_sandbox
        self._layers = layers or Layers()
        self._writable = writable
        self._held = ExitStack()
        self._interpreter: PythonDescription | None = None
        self._origin = ""
        self._asking = FairLock()
        self._checking: asyncio.Future[list[str]] | None = None
        self.layer: Layer | None = None

    @property
    def versions(self) -> Mapping[str, str]:
        """The packages that were provided: version by name."""
        return {} if self.layer is None else self.layer.packages

    def request(self, requested: Requested) -> None:
        """Ask for other packages from the next :meth:`provide` on."""
        self._requested = requested

    @property
    def path(self) -> Path | None:
        """Their directory; ``None`` without packages, or before they were provided."""
        return None if self.layer is None else self.layer.path

    @property
    def is_provided(self) -> bool:
        """Whether the packages are there, if any are requested."""
        return self.layer is not None or not self._requested

    async def provide(self, report: Callable[[str], None]) -> Path | None:
        """Get the packages, and hold their layer until :meth:`release`. Returns its directory, if any.

        ``report`` gets a line of progress now and then. Raises a ``SandboxError`` if the packages cannot be had, or the sandbox
        has no Python that they can be chosen for.
        """
        if not self.is_provided:
            self._refuse_what_code_could_change()
            interpreter = await self.interpreter()
            compiling, python = partial(self._compile, interpreter.cache_tag), interpreter.key(self._origin)
            while self.layer is None:
                layer = await self._layers.provide(self._requested, interpreter, python, compiling, report)
                # somebody may just have removed it
                with suppress(FileNotFoundError):
                    self._held.enter_context(layer.held())
                    self.layer = layer
        return self.path

    async def found(self) -> Layer | None:
        """The layer with the packages, if it exists already. Raises a ``SandboxError`` as :meth:`provide`."""
        interpreter = await self.interpreter()
        return self._layers.find(self._requested, interpreter.key(self._origin))

    async def interpreter(self) -> PythonDescription:
        """The sandbox's Python. A temporary sandbox asks it once, and the cache directory keeps the answer.

        Raises a ``SandboxError`` without one that describes itself.
        """
        async with self._asking:
            if self._interpreter is None:
                self._interpreter = await self._ask()
            return self._interpreter

    def _refuse_what_code_could_change(self) -> None:
        root = self._layers.root.resolve()
        for directory in self._writable:
            path = directory.resolve()
            if root.is_relative_to(path) or path.is_relative_to(root):
                raise SandboxError(
                    f"code could change the packages that all sandboxes share: they are kept in {root}, and the code can "
                    f"write to {path}. Give the code another directory, or set XDG_CACHE_HOME to another one"
                )

    def begin_check(self) -> None:
        """Begin to compare the layer with its manifest in the background."""
        if self.layer is not None and (self._checking is None or self._checking.done()):
            looking = asyncio.to_thread(self._layers.changes, self.layer, thorough=False)
            self._checking = asyncio.ensure_future(looking)

    @property
    def is_checked(self) -> bool:
        """Whether no check is under way."""
        return self._checking is None

    async def is_whole(self) -> bool:
        """Wait for the check, if one has begun. Returns whether the layer is unchanged."""
        if self._checking is not None:
            if await asyncio.shield(self._checking):
                return False
            self._checking = None
        return True

    async def discard(self) -> None:
        """Remove a layer that was changed; the next :meth:`provide` makes it anew."""
        assert self.layer is not None, "it has been looked at"
        layer = self.layer
        logger.warning(
            "the packages in %s were changed since they were made: they are made again", layer.path
        )
        await self.release()
        await asyncio.to_thread(self._layers.remove, layer)

    async def release(self) -> None:
        """Wait for the check, and stop holding the layer."""
        checking, self._checking = self._checking, None
        try:
            if checking is not None:
                await to_the_end(asyncio.wait({checking}))
        finally:
            self.layer = self._interpreter = None
            self._held.close()

    async def _ask(self) -> PythonDescription:
        unstarted = self._make_sandbox(_NO_WORKSPACE)
        found = await unstarted.python_identity()
        self._origin = found.origin
        identity = hashlib.sha256("\0".join(found).encode()).hexdigest()
        if (known := self._layers.interpreter(identity)) is not None:
            return known
        async with processes_in_throw_away(self._make_sandbox) as processes:
            interpreter = await interpreter_in(processes)
        try:
            self._layers.keep_interpreter(identity, interpreter)
        except OSError as error:
            logger.debug("the description of a Python cannot be kept: %s", error)
        return interpreter

    async def _compile(self, cache_tag: str, modules: Sequence[Path]) -> None:
        async with processes_in_throw_away(self._make_sandbox) as processes:
            await _compile_modules(processes, modules, cache_tag)


@asynccontextmanager
async def processes_in_throw_away(make_sandbox: Callable[[Path], Sandbox]) -> AsyncGenerator[ProcessServer]:
    """Starts processes in a sandbox whose workspace may be a temporary directory, and which ends with the context."""
    directory = await asyncio.to_thread(TemporaryDirectory)
    try:
        async with make_sandbox(Path(directory.path)) as sandbox, serving_alone(sandbox) as processes:
            yield processes
    finally:
        await to_the_end(asyncio.to_thread(directory.remove))


async def interpreter_in(processes: ProcessServer) -> PythonDescription:
    """Ask the Python of a sandbox to describe itself. Raises a ``SandboxError`` if it does not."""
    request = ProcessRequest(
        [processes.python, *describing()], stderr="together", output_limit=MAX_DESCRIPTION_BYTES
    )
    try:
        result = await processes.run(request)
    except OSError as error:
        raise SandboxError(f"the sandbox's Python does not describe itself: {error}") from error
    return read_description(result.stdout)
