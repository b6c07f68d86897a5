"""What the supervisor knows of a block, and the result that it reports when the block has ended."""

from __future__ import annotations

import os
import resource
import signal
import time

from codeact_team.sandbox.system.control_groups import GroupCounters
from codeact_team.sandbox.system.framing import ProtocolError, frame
from codeact_team.sandbox.system.process_tree import now, processor_ticks
from codeact_team.session.protocol import (
    MAX_ARTIFACT_BYTES,
    MAX_ARTIFACTS,
    RESULT_HEAD,
    TOKEN_BYTES,
    UNKNOWN,
    Kind,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from codeact_team.sandbox.system.process_tree import ProcessInfo
    from codeact_team.session.runner.supervisor.shells import Shell

KILLED = 128 + signal.SIGKILL
"""The exit code of what was killed."""

_MAX_REASON = 2000
_TICKS = os.sysconf("SC_CLK_TCK")
_MICROSECONDS = 1_000_000


class RunningBlock:
    """A block that runs.

    Attributes:
        token: The token that its report must have.
        interpreter: The number of the interpreter that is to run it; 0 for a shell.
        shell: The shell that runs it.
        is_given: Whether the interpreter has been given it.
        interrupted: Whether it was interrupted.
        is_last: Whether the interpreter ends with it, in order, and no other is wanted.
    """

    def __init__(self, interpreter: int) -> None:
        self.interpreter = interpreter
        self.token = os.urandom(TOKEN_BYTES)
        self.shell: Shell | None = None
        self.is_given = False
        self.interrupted = self.is_last = False
        self._began = now()
        self._artifacts = 0
        self._artifact_bytes = 0

    def add_artifact(self, artifact: bytes) -> None:
        """Count an artifact. Raises a ``ProtocolError`` if there are too many."""
        self._artifacts += 1
        self._artifact_bytes += len(artifact)
        if self._artifacts > MAX_ARTIFACTS or self._artifact_bytes > MAX_ARTIFACT_BYTES:
            raise ProtocolError("there are too many artifacts")

    def may_have_started(self, process: ProcessInfo) -> bool:
        """Whether a process was started since the block began, or within the same tick of the clock."""
        return process.started >= self._began


class Usage:
    """What the kernel counts for everything in the sandbox: killed and refused processes, and processor time.

    The processor time is that of the control group, if this process sees its own. Otherwise it is that of the interpreters
    and of all processes that have ended and were reaped; code can then hide what its children use.
    ``living`` returns the processes of all interpreters.
    """

    def __init__(self, living: Callable[[], Collection[int]]) -> None:
        self._living = living
        self._counters = GroupCounters.of_this_process()
        self._ticks: dict[int, int] = {}
        """The processor time of each interpreter, as last seen."""
        self._before = self._seconds(None) or 0.0
        self._measured = time.monotonic()

    def counts(self) -> tuple[int | None, int | None]:
        """How many processes were killed for memory, and how many could not be started; ``None`` if the kernel does not count them."""
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
        self.present = 1
        self._loss = ""
        self._usage = usage
        self._counts = usage.counts()

    def lose(self, reason: str) -> None:
        self.present += 1
        self._loss = reason

    def build(
        self,
        block: RunningBlock,
        code: int | None,
        *,
        ran: bool,
        ended_here: bool,
        output: bytes,
        report: bytes,
        own: int | None,
    ) -> bytes:
        (ooms, failures), self._counts = self._counts, self._usage.counts()
        oom_kills, fork_failures = _difference(self._counts[0], ooms), _difference(self._counts[1], failures)
        if oom_kills == UNKNOWN and ended_here:
            oom_kills = 0
        used = self._usage.microseconds_since_last(own)
        reason = self._loss.encode(errors="replace")[:_MAX_REASON]
        head = RESULT_HEAD.pack(
            block.interpreter,
            self.present,
            ran,
            UNKNOWN if code is None else code,
            oom_kills,
            fork_failures,
            UNKNOWN if used is None else used,
            len(reason),
            len(output),
        )
        return frame(Kind.RESULT, head, reason, output, report)

    def reason(self, status: int) -> str:
        """Why the interpreter has ended, given its status as :func:`os.waitpid` returns it."""
        if not os.WIFSIGNALED(status):
            return f"it ended itself with exit code {exit_code(status)} (os._exit or the like)"
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL:
            if _difference(self._usage.counts()[0], self._counts[0]) > 0:
                return "it was killed for memory"
            return f"it was killed (signal {number})"
        return f"{(signal.strsignal(number) or 'unknown signal').lower()} (signal {number})"


def exit_code(status: int) -> int:
    """The exit code, as a shell counts, of a process that ended with ``status``."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _difference(now: int | None, before: int | None) -> int:
    return UNKNOWN if now is None or before is None else now - before
