"""Loads the runner from a byte stream, so that an image needs nothing of ours. Run by ``python -c``.

argv: the file descriptor to read from, the number of bytes to read there, the module to run, its arguments
the bytes: JSON, the source of each module by its name
"""

import sys

# nothing of the workspace may stand in for a module of the runner, or for what that imports
_path, sys.path = sys.path, [entry for entry in sys.path if entry]

import json  # noqa: E402
import os  # noqa: E402
from importlib.machinery import ModuleSpec  # noqa: E402
from types import ModuleType  # noqa: E402

if sys.version_info < (3, 10):  # noqa: UP036 - whatever Python an image has
    sys.exit("Python 3.10 or newer is needed in the sandbox; this is " + sys.version.split()[0])


def _read(fd: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        # exactly: what follows belongs to the module
        piece = os.read(fd, size - len(data))
        if not piece:
            sys.exit("the runner did not arrive")
        data += piece
    return data


class _Shipped:
    """Finds and loads the modules."""

    def __init__(self, sources: "dict[str, str]") -> None:
        self._sources = sources
        self._loaded: dict[str, ModuleType] = {}

    def find_spec(self, name: str, path: object = None, target: object = None) -> "ModuleSpec | None":
        if name not in self._sources:
            return None
        is_package = any(other.startswith(name + ".") for other in self._sources)
        return ModuleSpec(name, self, is_package=is_package)  # pyright: ignore[reportArgumentType]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        exec(compile(self._sources[name], "<" + name + ">", "exec"), module.__dict__)

    def load(self, name: str) -> ModuleType:
        """The module ``name``. What the code imports by the names of the runner's modules stays its own."""
        own = self._taken_out()
        sys.modules.update(self._loaded)
        sys.meta_path.insert(0, self)
        try:
            __import__(name)
            return sys.modules[name]
        finally:
            sys.meta_path.remove(self)
            self._loaded = self._taken_out()
            sys.modules.update(own)

    def _taken_out(self) -> "dict[str, ModuleType]":
        return {name: sys.modules.pop(name) for name in self._sources if name in sys.modules}


def _main() -> None:
    fd, size, name, *arguments = sys.argv[1:]
    payload = _read(int(fd), int(size))
    shipped = _Shipped(json.loads(payload))
    main = shipped.load(name).main
    sys.path = _path
    sys.argv = [""]
    main(payload, shipped.load, arguments)


_main()
