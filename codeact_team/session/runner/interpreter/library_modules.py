"""Keeps modules that code can write from standing in for those of the standard library, where the code did not ask for them."""

from __future__ import annotations

import importlib
import os
import sys
from importlib.machinery import PathFinder

from codeact_team.session.runner.interpreter.stack_frames import interruptible, is_users

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any

_IMPORT_SYSTEM = ("<frozen importlib", os.path.dirname(importlib.__file__) + os.sep)


class LibraryFinder:
    """Finds a module of the standard library there and nowhere else, unless the user's own code imports it.

    The runner and libraries import modules at moments when nobody sees it, as when a traceback is formatted. The workspace
    comes first on the path, and what is in it may be from whoever had the session before.
    """

    def __init__(self) -> None:
        # what comes onto the path later is no part of it
        self._places = [
            place
            for place in sys.path
            if (place + os.sep).startswith(os.path.dirname(os.__file__) + os.sep)
            or os.path.basename(place) == "lib-dynload"
        ]

    def install(self) -> None:
        """Be asked from now on, after the finders of modules that are no files."""
        later = (number for number, finder in enumerate(sys.meta_path) if finder is PathFinder)
        sys.meta_path.insert(next(later, 0), self)  # pyright: ignore[reportArgumentType]

    @interruptible
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name not in sys.stdlib_module_names or _user_imports():
            return None
        if (spec := PathFinder.find_spec(name, self._places)) is None:
            # such as one of another operating system
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return spec


@interruptible
def _user_imports() -> bool:
    frame = sys._getframe(2)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code.co_filename.startswith(_IMPORT_SYSTEM):
        frame = frame.f_back
    return frame is not None and is_users(frame.f_code.co_filename)
