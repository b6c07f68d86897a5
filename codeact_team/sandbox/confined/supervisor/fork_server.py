"""The start of the zygote: it loads a program, and its main thread forks while another thread serves the host.

On the stack of the main thread is nothing but what Python itself has begun with. So a fork can become a program that finds
none of our calls on its stack, and whose first thread is the one to which Python delivers signals; from CPython 3.13 on, a
fork by another thread is not. This module imports next to nothing, because a program that is a fork finds that imported.
"""

from __future__ import annotations

import _thread
import marshal
import os
import signal
import site
import sys
from _queue import SimpleQueue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Child = Callable[[], bool]
    """Called first in a fork. Returns whether it forks on request as well; otherwise it becomes the loaded program."""


class LoadedProgram:
    """A program for forks to become, with everything that it would find if it had been started.

    Modules that are imported later are not visible to it. It is loaded into the ``__main__`` module of this process, which
    has to end with ``_loaded.run(_arguments)``. For the arguments see :class:`~codeact_team.sandbox.base.ZygoteProgram`.
    """

    def __init__(self, loader: str, data: bytes, names: str, arguments: Sequence[str]) -> None:
        path = [*sys.path]
        self._found = set(filter(os.path.exists, path))
        # the value when Python runs a command
        sys.path[0] = ""
        self._main = sys.modules["__main__"].__dict__
        # not yet the name with which it would run at once
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
        """Remove all traces of this process in a fork."""
        os.environ.clear()
        os.environ.update(environment)
        # a starting Python leaves out directories that do not exist
        path: list[str] = self._main["_path"]
        path[:] = [entry for entry in path if entry not in self._found or os.path.exists(entry)]
        # these depend on the environment
        site.USER_BASE = site.USER_SITE = None
        del self._main["_main_thread"]
        for name in sys.modules.keys() - self._modules.keys():
            del sys.modules[name]
        sys.modules.update(self._modules)
        sys.path_importer_cache.clear()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # as Python has it
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


class _Order:
    def __init__(self, child: Child) -> None:
        self.child = child
        self.pid = -1
        self.is_done = _thread.allocate_lock()
        self.is_done.acquire()
        self.error: OSError | None = None


class MainThread:
    """Lets the main thread fork on behalf of another one."""

    def __init__(self) -> None:
        self._orders: SimpleQueue[_Order] = SimpleQueue()

    def serve(self, work: Callable[[], None]) -> None:
        """Run ``work`` in another thread. When it returns or fails, the process ends."""

        def thread() -> None:
            try:
                work()
            finally:
                os._exit(0)

        _thread.start_new_thread(thread, ())

    def fork(self, child: Child) -> int:
        """Have the main thread fork, and return the process id. Not to be called by it. Raises an ``OSError``."""
        order = _Order(child)
        self._orders.put(order)
        order.is_done.acquire()
        if order.error is not None:
            raise order.error
        return order.pid

    def obey(self) -> bool:
        """Fork once on request. The main thread has to call this at the outermost level, as long as it returns true."""
        order = self._orders.get()
        try:
            order.pid = os.fork()
        except OSError as error:
            order.error = error
        if order.pid == 0:
            return order.child()
        order.is_done.release()
        return True


def begin(arguments: list[str]) -> MainThread:
    """Load a program, and start a thread that serves the host. The argument is a descriptor to read the program from."""
    with open(int(arguments[0]), "rb") as file:
        parts = marshal.load(file)
    program = None if parts is None else LoadedProgram(*parts)
    # only now, as a fork finds everything that was imported before; without site, the package is not on the path
    sys.path.append(os.path.abspath(f"{__file__}/../../../../.."))
    from codeact_team.sandbox.confined.supervisor.zygote import serve

    main_thread = MainThread()
    serve(main_thread, program)
    return main_thread
