"""What ``%autoreload`` does: modules of the user whose files have changed are loaded anew before a block."""

from __future__ import annotations

import sys
from importlib import reload
from os import stat
from types import ModuleType

from codeact_team.session.runner.interpreter.user_code import interruptible_module, is_users

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

interruptible_module(__name__)


class Autoreload:
    """Loads modules anew, and gives variables that were imported from them their new values."""

    def __init__(self, variables: dict[str, Any]) -> None:
        self._variables = variables
        self.is_on: bool = False
        self._seen: dict[str, tuple[int, int]] = {}

    def note(self) -> None:
        """Remember the files of all modules as they are now."""
        self._seen = {module.__name__: state for module, state in _modules()}

    def note_new(self) -> None:
        """The same for modules that have not been seen before."""
        for module, state in _modules():
            self._seen.setdefault(module.__name__, state)

    def reload(self) -> None:
        """Load all modules anew whose files have changed since they were seen. Raises whatever their code raises."""
        for module, state in _modules():
            if self._seen.setdefault(module.__name__, state) == state:
                continue
            # not again before it changes, if it fails
            self._seen[module.__name__] = state
            old = dict(module.__dict__)
            reload(module)
            for name, value in self._variables.items():
                if name in old and value is old[name] and name in module.__dict__:
                    self._variables[name] = module.__dict__[name]


def _modules() -> Iterator[tuple[ModuleType, tuple[int, int]]]:
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if type(file) is str and is_users(file):
            try:
                status = stat(file)
            except OSError:
                continue
            yield module, (status.st_mtime_ns, status.st_size)
