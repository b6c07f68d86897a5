"""Starting a program, one at a time, and ending it with all that it has forked."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Protocol

from descendants import drain, end_all, notice_deaths, send

from codeact_team.sandbox.system.limits import CODE_DESCRIPTORS, OWN_DESCRIPTORS

_NOT_FOUND, _NOT_EXECUTABLE = 127, 126
_COUNTED = {"oom_kills": "memory", "fork_failures": "pids"}


class Program(Protocol):
    """A started program: sandlock's, or a plain one."""

    @property
    def pid(self) -> int | None: ...

    def wait(self) -> object: ...


Start = Callable[[list[str] | None, dict[str, str], list[str], int], Program]
"""Starts a program on this process's standard streams: its arguments, ``None`` for what is loaded ahead, its environment,
what it may read, and how many descriptors it may have."""

ProcessorTime = Callable[[], float]
"""Seconds of processor time that programs have used so far."""

Count = Callable[[str], int | None]
"""How many processes a limit, by its controller, has killed or refused, if that is known."""


class Programs:
    """The program that runs, if one does. Each is started inside the ``with`` of ``starting``."""

    def __init__(
        self,
        start: Start,
        starting: AbstractContextManager[None],
        count: Count = lambda controller: None,
        processor_time: ProcessorTime | None = None,
    ) -> None:
        self._start = start
        self._starting = starting
        self._count = count
        self._counts: dict[str, int] = {}
        self._processor_time = processor_time or _of_ended_children
        self._used = 0.0
        self._program: Program | None = None
        self._leader = 0
        self._status = -1
        self.child_died, _ = notice_deaths()

    def spawn(self, message: Mapping[str, Any], fds: Sequence[int]) -> None:
        """Start a program on the first two of ``fds``; how it ends is written to the third."""
        stdin, output, self._status = fds
        self._counts, self._used = self._count_all(), self._processor_time()
        try:
            with _standard_streams(stdin, output), self._starting:
                # one that supervises code has to be able to do what code can no longer do
                descriptors = OWN_DESCRIPTORS if message["supervises"] else CODE_DESCRIPTORS
                self._program = self._start(message["argv"], message["env"], message["readable"], descriptors)
            assert self._program.pid is not None
            self._leader = self._program.pid
        except (FileNotFoundError, PermissionError) as error:
            os.write(output, f"{message['argv'][0]}: {error.strerror}\n".encode())
            self._report(code=_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE)
        except (OSError, RuntimeError, ValueError) as error:
            self._report(failed=str(error))
        finally:
            os.close(stdin)
            os.close(output)

    def send(self, number: int) -> None:
        """Send a signal to everything that runs. What ends is noticed by :meth:`reap`."""
        if self._program is not None:
            send(number, self._leader)

    def reap(self) -> None:
        """Look for what has ended: the program, or orphans of it."""
        drain(self.child_died)
        while self._program is not None and (child := _ended_child(self._program)) is not None:
            pid, code = child
            if pid == self._leader:
                self._end(self._program)
                counts, used = self._count_all(), self._processor_time() - self._used
                counted = {name: counts[name] - then for name, then in self._counts.items()}
                self._report(code=code, processor_seconds=used, **counted)
            else:
                os.waitpid(pid, 0)

    def close(self) -> None:
        """End everything."""
        if self._program is not None:
            self.send(signal.SIGKILL)
            self._end(self._program)

    def _end(self, program: Program) -> None:
        # also ends sandlock's supervision, without which nothing left inside can fork any more
        program.wait()
        end_all(self._leader, self.child_died)
        self._program = None

    def _count_all(self) -> dict[str, int]:
        """What has been counted so far, of what is counted."""
        counts = {name: self._count(controller) for name, controller in _COUNTED.items()}
        return {name: count for name, count in counts.items() if count is not None}

    def _report(self, **how: object) -> None:
        with suppress(BrokenPipeError):
            os.write(self._status, json.dumps(how).encode())
        os.close(self._status)


@contextmanager
def _standard_streams(stdin: int, output: int) -> Generator[None]:
    """Within it, this process's standard streams are those of the program to start."""
    for target, fd in enumerate((stdin, output, output)):
        os.dup2(fd, target)
    try:
        yield
    finally:
        close_standard_streams()


def close_standard_streams() -> None:
    """Let nothing come in by the standard streams, and nothing go out."""
    null = os.open(os.devnull, os.O_RDWR)
    for target in range(3):
        os.dup2(null, target)
    os.close(null)


def _of_ended_children() -> float:
    # without those that nobody has waited for, as a program may have it
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _ended_child(program: Program) -> tuple[int, int] | None:
    """A child that has ended and is still to be reaped, with its exit code; 128 + n for signal n."""
    if sys.platform != "linux":
        # nobody's orphans are ours there, and waitid comes with Python 3.13
        assert isinstance(program, subprocess.Popen)
        code = program.poll()
        return None if code is None else (program.pid, code if code >= 0 else 128 - code)
    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if ended is None:
        return None
    return ended.si_pid, ended.si_status if ended.si_code == os.CLD_EXITED else 128 + ended.si_status
