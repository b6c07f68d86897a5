"""Modules of the runner that not every session needs, loaded by the first that does."""

from __future__ import annotations

import builtins
import json
import sys
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_RUNNER = __name__.partition(".")[0]


def imported() -> dict[str, ModuleType]:
    """The modules of the runner that can be imported now; later on, what the code imports by these names is its own."""
    return {name: module for name, module in sys.modules.items() if name.partition(".")[0] == _RUNNER}


class Loader:
    """Loads modules of the runner, and what these import, without a trace in ``sys.modules``.

    Args:
        payload: The source of each, as ``bootstrap.py`` reads it.
        loaded: Those that need not be loaded.
    """

    def __init__(self, payload: bytes, loaded: dict[str, ModuleType]) -> None:
        self._payload = payload
        self._loaded = dict(loaded)

    def load(self, name: str) -> Any:
        """The module ``name``."""
        if name not in self._loaded:
            source = json.loads(self._payload)[name]
            module = self._loaded[name] = ModuleType(name)
            # statements of the module, and they alone, import by this
            module.__dict__["__builtins__"] = {**vars(builtins), "__import__": self._import}
            exec(compile(source, f"<{name}>", "exec"), module.__dict__)
        return self._loaded[name]

    def _import(
        self, name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0
    ) -> Any:
        if name.partition(".")[0] == _RUNNER:
            # "from name import ...": the runner has no other form
            return self.load(name)
        return builtins.__import__(name, globals, locals, fromlist, level)
