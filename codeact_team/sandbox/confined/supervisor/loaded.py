"""A Python program that is loaded ahead, for forks of this process to run. Imports next to nothing: its forks have that, too."""

from __future__ import annotations

import os
import signal
import site
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class LoadedProgram:
    """What a fork is to be, with everything that it would find if it had been started as a program.

    What is imported later does not get there. It is loaded into the module that this process runs, which has to end with
    ``_loaded.run(_arguments)``. For the arguments see :class:`~codeact_team.sandbox.base.LoadedAhead`.
    """

    def __init__(self, loader: str, data: bytes, names: str, arguments: Sequence[str]) -> None:
        path = [*sys.path]
        self._found = set(filter(os.path.exists, path))
        # as it is where Python runs a command
        sys.path[0] = ""
        self._main = sys.modules["__main__"].__dict__
        # not yet by the name that lets it run at once
        self._main["__name__"] = "loader"
        exec(compile(loader, "<string>", "exec"), self._main)
        self._main |= {
            "_loaded": self._main["Loaded"](data, names),
            "_arguments": [*arguments],
            "__name__": "__main__",
        }
        self._modules = {**sys.modules}
        del self._modules[__name__]
        sys.path[:] = path

    def take_over(self, environment: Mapping[str, str]) -> None:
        """In a fork, leave nothing to be found of what this process was."""
        os.environ.clear()
        os.environ.update(environment)
        # a start leaves out directories that are not there
        path: list[str] = self._main["_path"]
        path[:] = [entry for entry in path if entry not in self._found or os.path.exists(entry)]
        # where these are depends on the environment
        site.USER_BASE = site.USER_SITE = None
        del self._main["obey"]
        for name in sys.modules.keys() - self._modules.keys():
            del sys.modules[name]
        sys.modules.update(self._modules)
        sys.path_importer_cache.clear()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # as Python has it
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
