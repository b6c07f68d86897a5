"""Loads the runner from a byte stream, so that an image needs nothing of ours. Run by the launcher of ``session.protocol``.

A zygote loads it, too, and runs it in its forks.

argv: the descriptor to read from, the number of bytes to read there, the module to run and others to load (separated by
commas), the arguments of the module
the bytes: by :func:`marshal.dumps`, the magic number of a Python, the modules of the runner as code of that Python, the same
as source for any other, and modules of the standard library; for each, by its name, its origin, whether it is a package, and
its code or source
"""

import sys

# no file of the workspace may replace a module of the runner, or one that it imports
_path, sys.path = sys.path, [entry for entry in sys.path if entry]

import marshal  # noqa: E402
import os  # noqa: E402
from importlib.machinery import ModuleSpec, SourceFileLoader  # noqa: E402
from importlib.util import MAGIC_NUMBER  # noqa: E402
from types import CodeType, ModuleType  # noqa: E402

if sys.version_info < (3, 10):  # noqa: UP036 - whatever Python an image has
    sys.exit("Python 3.10 or newer is needed in the sandbox; this is " + sys.version.split()[0])


def read(fd: int, size: int) -> bytes:
    """Read exactly so many bytes."""
    pieces: list[bytes] = []
    while size:
        # not more: what follows belongs to the module
        piece = os.read(fd, size)
        if not piece:
            sys.exit("the runner did not arrive")
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


class _Shipped:
    """Finds and loads shipped modules."""

    def __init__(self, sources: "dict[str, tuple[str, bool, str | bytes]]") -> None:
        self._sources = sources

    def find_spec(self, name: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        if name not in self._sources:
            return None
        origin, is_package, _ = self._sources[name]
        spec = ModuleSpec(name, self, origin=origin, is_package=is_package)  # pyright: ignore[reportArgumentType]
        if os.path.isabs(origin):
            spec.has_location = True
            spec.submodule_search_locations = [os.path.dirname(origin)] if is_package else None
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec, "it was found here"
        assert spec.origin, "it was found here"
        _, _, source = self._sources[spec.name]
        code: CodeType = (
            marshal.loads(source) if isinstance(source, bytes) else compile(source, spec.origin, "exec")
        )
        exec(code, module.__dict__)
        if spec.has_location:
            # as if it had been loaded from its file
            spec.loader = module.__loader__ = SourceFileLoader(spec.name, spec.origin)


class Loaded:
    """The runner, with its modules loaded, outside ``sys.modules``: the code may have modules of the same names.

    Args:
        data: The bytes.
        names: The module to run and others to load, separated by commas.
    """

    def __init__(self, data: bytes, names: str) -> None:
        magic, compiled, sources, standard = marshal.loads(data)
        self._sources = compiled if magic == MAGIC_NUMBER else sources
        self._modules: dict[str, ModuleType] = {}
        finder = _Shipped(standard)
        sys.meta_path.insert(0, finder)  # pyright: ignore[reportArgumentType]
        self._main, *_ = [self._load(name) for name in names.split(",")]
        sys.meta_path.remove(finder)  # pyright: ignore[reportArgumentType]

    def run(self, arguments: "list[str]") -> None:
        sys.path = _path
        sys.argv = [""]
        main = self._main
        # a program may continue as another one, with other arguments
        while (then := main.main(self._sources, self._load, arguments)) is not None:
            name, arguments = then
            main = self._load(name)
        os._exit(0)

    def _load(self, name: str) -> ModuleType:
        users, finder = self._taken_out(), _Shipped(self._sources)
        sys.modules.update(self._modules)
        sys.meta_path.insert(0, finder)  # pyright: ignore[reportArgumentType]
        try:
            __import__(name)
            return sys.modules[name]
        finally:
            sys.meta_path.remove(finder)  # pyright: ignore[reportArgumentType]
            self._modules = self._taken_out()
            sys.modules.update(users)

    def _taken_out(self) -> "dict[str, ModuleType]":
        return {name: sys.modules.pop(name) for name in self._sources if name in sys.modules}
