"""A program as a fork of this process, which may do something to itself before it becomes that."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn

_FIRST_FD = 3
_ERRNO = struct.Struct("=i")


class Forked(NamedTuple):
    """A started one."""

    pid: int

    def wait(self) -> None:
        """Reap it, once it has ended."""
        os.waitpid(self.pid, 0)


def start(begin: Callable[[], None], go_on: Callable[[], NoReturn]) -> Forked:
    """Fork: the child leads a session and has the standard streams of this process, and no other descriptors.

    Args:
        begin: What it does to itself first.
        go_on: What it does then.

    Raises:
        OSError: If it cannot be forked, or if either raises that.
    """
    failure, telling = os.pipe()
    with open(failure, "rb") as said:
        try:
            if (pid := os.fork()) == 0:
                _become(begin, go_on, telling)
        finally:
            os.close(telling)
        # it closes with a program's start
        if error := said.read():
            os.waitpid(pid, 0)
            [number] = _ERRNO.unpack_from(error)
            raise OSError(number, error[_ERRNO.size :].decode())
    return Forked(pid)


def execute(argv: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Become another program."""
    os.execvpe(argv[0], [*argv], environment)


def _become(begin: Callable[[], None], go_on: Callable[[], NoReturn], telling: int) -> NoReturn:
    try:
        os.setsid()
        os.dup2(telling, _FIRST_FD, inheritable=False)
        os.closerange(_FIRST_FD + 1, os.sysconf("SC_OPEN_MAX"))
        # Python ignores it, and a program would inherit that
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        begin()
        go_on()
    except OSError as error:
        os.write(_FIRST_FD, _ERRNO.pack(error.errno or 0) + (error.strerror or str(error)).encode())
    finally:
        os._exit(1)
