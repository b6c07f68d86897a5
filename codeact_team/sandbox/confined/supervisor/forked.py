"""A program as a fork of this process, which may do something to itself before it becomes that."""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Self

import main_thread
from loaded import LoadedProgram

_FIRST_FD = 3
_ERRNO = struct.Struct("=i")


class Forked(NamedTuple):
    """A started one."""

    pid: int

    def wait(self) -> None:
        """Reap it, once it has ended."""
        os.waitpid(self.pid, 0)


def start(begin: Callable[[], None], argv: Sequence[str], environment: Mapping[str, str]) -> Forked:
    """Start a program, which has the standard streams of this process, and no other descriptors.

    Args:
        begin: What it does to itself first.
        argv: The program and its arguments.
        environment: Its own.

    Raises:
        OSError: If it cannot be started, or if ``begin`` raises that.
    """
    with _Birth() as birth:
        if (pid := os.fork()) == 0:
            try:
                birth.take_place(begin)
                # Python ignores it, and a program would inherit that
                signal.signal(signal.SIGPIPE, signal.SIG_DFL)
                os.execvpe(argv[0], [*argv], environment)
            except OSError as error:
                birth.fail(error)
            finally:
                os._exit(1)
    return birth.end(pid)


def start_loaded(begin: Callable[[], None], program: LoadedProgram, environment: Mapping[str, str]) -> Forked:
    """Like :func:`start`, with a program that this process has loaded. By a thread other than the main one."""

    def become() -> bool:
        try:
            birth.take_place(begin)
        except OSError as error:
            birth.fail(error)
            os._exit(1)
        birth.close()
        program.take_over(environment)
        return False

    with _Birth() as birth:
        pid = main_thread.fork(become)
    return birth.end(pid)


class _Birth:
    """A pipe by which a fork says why it cannot become what it is to be; within it, of both processes."""

    def __init__(self) -> None:
        self._failure, self._telling = os.pipe()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._telling)

    def take_place(self, begin: Callable[[], None]) -> None:
        """In the fork, let go of what is this process's."""
        os.setsid()
        os.dup2(self._telling, _FIRST_FD, inheritable=False)
        os.closerange(_FIRST_FD + 1, os.sysconf("SC_OPEN_MAX"))
        begin()

    def fail(self, error: OSError) -> None:
        """In the fork, say why."""
        os.write(_FIRST_FD, _ERRNO.pack(error.errno or 0) + (error.strerror or str(error)).encode())

    def close(self) -> None:
        """In the fork, say that nothing has failed."""
        os.close(_FIRST_FD)

    def end(self, pid: int) -> Forked:
        """Wait until the fork is what it is to be, or raise why it cannot."""
        with open(self._failure, "rb") as said:
            # it closes with a program's start
            if error := said.read():
                os.waitpid(pid, 0)
                [number] = _ERRNO.unpack_from(error)
                raise OSError(number, error[_ERRNO.size :].decode())
        return Forked(pid)
