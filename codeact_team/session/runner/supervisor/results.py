"""The results that the supervisor reports when blocks have ended, and what the kernel counts meanwhile."""

from __future__ import annotations

import os
import resource
import signal
import time

from codeact_team.sandbox.system.control_groups import GroupCounters
from codeact_team.sandbox.system.framing import frame
from codeact_team.sandbox.system.process_tree import processor_ticks
from codeact_team.session.protocol import Kind, ResultFrame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    Counts = tuple[int | None, int | None]
    """The numbers of processes killed for memory, and not started; ``None`` if the kernel does not count them."""

KILLED = 128 + signal.SIGKILL
"""The exit code of what was killed."""

_TICKS = os.sysconf("SC_CLK_TCK")
_MICROSECONDS = 1_000_000


class Usage:
    """The kernel's counters for everything in the sandbox: killed and refused processes, and processor time.

    The processor time is the control group's, if this process sees its own. Otherwise it is the sum of the interpreters and
    of all processes that have ended and were reaped; code can then hide what its children use.
    ``living`` returns the processes of all interpreters.
    """

    def __init__(self, living: Callable[[], Collection[int]]) -> None:
        self._living = living
        self._counters = GroupCounters.of_this_process()
        self._ticks: dict[int, int] = {}
        """The processor time of each interpreter, as last seen."""
        self._before = self._seconds(None) or 0.0
        self._measured = time.monotonic()

    def counts(self) -> Counts:
        """Return the counts so far."""
        return self._counters.oom_kills, self._counters.fork_failures

    def microseconds_since_last(self, own: int | None) -> int | None:
        """Microseconds of processor time since the last call; ``None`` if not known."""
        if not self._counters.measures_time:
            if (measured := time.monotonic()) - self._measured < 1 / _TICKS:
                # that clock has not ticked since; less than a tick counts later
                return 0
            self._measured = measured
        seconds = self._seconds(own)
        if seconds is None:
            return None
        used, self._before = max(0.0, seconds - self._before), max(seconds, self._before)
        return round(used * _MICROSECONDS)

    def _seconds(self, own: int | None) -> float | None:
        if (seconds := self._counters.processor_seconds()) is not None:
            return seconds
        ended = resource.getrusage(resource.RUSAGE_CHILDREN)
        # the other interpreters were measured when they had run something
        living = self._living()
        self._ticks = {pid: ticks for pid, ticks in self._ticks.items() if pid in living}
        if own is not None:
            try:
                self._ticks[own] = processor_ticks(own)
            except OSError:
                return None
        return ended.ru_utime + ended.ru_stime + sum(self._ticks.values()) / _TICKS


class SessionResults:
    """Reports how the blocks and interpreters of one session end.

    Attributes:
        present: The number of the present interpreter, which may not have been started yet.
    """

    def __init__(self, usage: Usage) -> None:
        self.present: int = 1
        self._loss = ""
        self._usage = usage
        self._counts = usage.counts()

    def lose(self, reason: str) -> None:
        self.present += 1
        self._loss = reason

    def build(
        self,
        interpreter: int,
        code: int | None,
        *,
        ran: bool,
        ended_here: bool,
        output: bytes,
        report: bytes,
        own: int | None,
    ) -> bytes:
        before, self._counts = self._counts, self._usage.counts()
        oom_kills, fork_failures = difference(self._counts, before)
        if oom_kills is None and ended_here:
            oom_kills = 0
        result = ResultFrame(
            interpreter,
            self.present,
            ran,
            code,
            oom_kills,
            fork_failures,
            self._usage.microseconds_since_last(own),
            self._loss,
            output,
            report,
        )
        return frame(Kind.RESULT, result.pack())

    def reason(self, status: int) -> str:
        """Return the reason for the interpreter's end, given its status as :func:`os.waitpid` returns it."""
        if not os.WIFSIGNALED(status):
            return f"it ended itself with exit code {exit_code(status)} (os._exit or the like)"
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL:
            if difference(self._usage.counts(), self._counts)[0]:
                return "it was killed for memory"
            return f"it was killed (signal {number})"
        return f"{(signal.strsignal(number) or 'unknown signal').lower()} (signal {number})"


def exit_code(status: int) -> int:
    """The exit code, as a shell counts, of a process that ended with ``status``."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def difference(after: Counts, before: Counts) -> Counts:
    """The difference of the counts between two calls of :meth:`Usage.counts`."""
    kills, failures = (
        None if one is None or other is None else one - other
        for one, other in zip(after, before, strict=True)
    )
    return kills, failures
