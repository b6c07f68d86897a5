"""What can be imported: modules of the runner that not every session needs, and what the code installs."""

from __future__ import annotations

import builtins
import json
import os
import site
import sys
from contextlib import suppress
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_RUNNER = __name__.partition(".")[0]


def prepare_user_site() -> None:
    """Let the code import what pip will install for its user. Python itself looks at its start whether that is there."""
    if not site.ENABLE_USER_SITE:
        return
    place = site.getusersitepackages()
    # a directory that is not there when the first module is looked for counts as missing for ever
    with suppress(OSError):
        os.makedirs(place, exist_ok=True)
    if place not in sys.path:
        shared = (number for number, path in enumerate(sys.path) if path.endswith("-packages"))
        sys.path.insert(next(shared, len(sys.path)), place)


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
