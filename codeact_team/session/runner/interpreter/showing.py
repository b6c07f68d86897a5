"""Finds out whether a block shows more than text. What makes artifacts of that is loaded when there is something to show."""

from __future__ import annotations

import builtins
import os
import sys
from warnings import filterwarnings

from codeact_team.session.runner.interpreter.repr_methods import shows_itself
from codeact_team.session.runner.interpreter.user_code import interruptible, user_imports

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from importlib.machinery import ModuleSpec
    from typing import Any

    from codeact_team.session.runner.interpreter.artifacts import Artifacts

_PACKAGE = __name__.rpartition(".")[0]
_ARTIFACTS, _STAND_IN = f"{_PACKAGE}.artifacts", f"{_PACKAGE}.ipython_stand_in"
"""Loaded when they are needed."""
_CLEARS_SCREEN = "\x1b[H\x1b[2J"
"""As the program ``clear`` writes it. Readers of the output settle it as a terminal would."""


class Showing:
    """What the blocks of an interpreter show: by ``display``, as their last values, and by the functions of libraries.

    Makes matplotlib draw into memory, and not warn that ``show`` opens no window.

    Args:
        load: Loads a module of the runner.
        warn: Writes a remark.
        check: Raises an interrupt that came while a module was loaded.
    """

    def __init__(
        self, load: Callable[[str], Any], warn: Callable[[str], None], check: Callable[[], None]
    ) -> None:
        self._load = load
        self._warn = warn
        self._check = check
        self._artifacts: Artifacts | None = None
        os.environ.setdefault("MPLBACKEND", "Agg")
        filterwarnings("ignore", message="FigureCanvasAgg is non-interactive", category=UserWarning)
        sys.meta_path.insert(0, ImportWatcher(dict.fromkeys(_WATCHED, self._watch)))
        sys.meta_path.append(_StandIn(load))
        builtins.__dict__["display"] = self.display

    def begin(self) -> None:
        """Forget the last block."""
        if self._artifacts is not None:
            self._artifacts.begin()

    @interruptible
    def display(self, *values: object, **options: Any) -> Any:
        """Show values: in the output as text, and in their other forms as artifacts.

        Args:
            values: The values.
            options: ``raw=True``, if the values are dicts of forms by their types; ``display_id``, to get an object whose
                ``update`` shows another value. Others that IPython has are ignored.
        """
        return self._loaded().display(*values, **options)

    @interruptible
    def clear_output(self, *, wait: bool) -> None:
        """Take back what the block has shown. With ``wait``, an artifact stays until there is another one."""
        sys.stdout.write(_CLEARS_SCREEN)
        if self._artifacts is not None:
            self._artifacts.clear(wait=wait)

    def send(self, value: object, send: Callable[[bytes, bytes], None]) -> None:
        """Send the artifacts of the block, whose last value is ``value``, each in two pieces."""
        if self._artifacts is not None or shows_itself(value):
            self._loaded().collect(value, send)

    @interruptible
    def _loaded(self) -> Artifacts:
        if self._artifacts is None:
            artifacts: type[Artifacts] = self._load(_ARTIFACTS).Artifacts
            self._artifacts = artifacts(self._load, self._warn)
            self._check()
        return self._artifacts

    @interruptible
    def _watch(self, module: Any) -> None:
        self._loaded().watch(module)


_WATCHED = (
    "matplotlib.figure",
    "matplotlib.pyplot",
    "IPython.core.display_functions",
    "IPython.core.getipython",
    "plotly.io._renderers",
    "PIL.ImageShow",
)
"""The modules whose functions show something, or ask where, and would show it nowhere in a sandbox."""


class ImportWatcher:
    """Finds and loads some modules as the others would, and calls a function with each when it is loaded.

    Args:
        watches: The functions, by the names of the modules.
    """

    def __init__(self, watches: Mapping[str, Callable[[Any], None]]) -> None:
        self._watches = watches
        self._loaders: dict[str, Any] = {}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in self._watches:
            return None
        others: Any = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((spec for spec in others if spec is not None), None)
        if spec is not None and spec.loader is not None:
            self._loaders[name], spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> Any:
        return self._loaders[spec.name].create_module(spec)

    def exec_module(self, module: Any) -> None:
        loader = self._loaders.pop(module.__spec__.name)
        # from now on the module looks as if this had never existed
        module.__loader__ = module.__spec__.loader = loader
        loader.exec_module(module)
        self._watches[module.__name__](module)


class _StandIn:
    """Finds ``IPython.display`` for the user's code where IPython is not installed."""

    def __init__(self, load: Callable[[str], Any]) -> None:
        self._load = load

    @interruptible
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        # libraries find out by an import whether there is an IPython
        if name not in ("IPython", "IPython.display") or not user_imports():
            return None
        return self._load(_STAND_IN).spec_of(name)
