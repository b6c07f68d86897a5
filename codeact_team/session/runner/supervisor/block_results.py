"""What the supervisor knows of a block, and what it says of its end."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from contextlib import suppress

from codeact_team.session.protocol import (
    MAX_ARTIFACT_BYTES,
    MAX_ARTIFACTS,
    NONE,
    RESULT_HEAD,
    TOKEN_BYTES,
    Kind,
    ProtocolError,
    frame,
)
from codeact_team.session.runner.supervisor.process_family import Descendant, now
from codeact_team.session.runner.supervisor.processor_time import ProcessorTime
from codeact_team.session.runner.supervisor.shells import Shell

KILLED = 128 + signal.SIGKILL
"""The exit code of what was killed."""

_MAX_REASON = 2000


class Block:
    """A block that runs.

    Attributes:
        token: What its report bears.
        interpreter: The number of the interpreter that is to run it; 0 for a shell.
        shell: The shell that runs it.
        is_given: Whether the interpreter has been given it.
        interrupted: Whether it has been told to end.
    """

    def __init__(self, interpreter: int) -> None:
        self.interpreter = interpreter
        self.token = os.urandom(TOKEN_BYTES)
        self.shell: Shell | None = None
        self.is_given = False
        self.interrupted = False
        self._began = now()
        self._artifacts = 0
        self._artifact_bytes = 0

    def add_artifact(self, artifact: bytes) -> None:
        self._artifacts += 1
        self._artifact_bytes += len(artifact)
        if self._artifacts > MAX_ARTIFACTS or self._artifact_bytes > MAX_ARTIFACT_BYTES:
            raise ProtocolError("there are too many artifacts")

    def may_have_started(self, descendant: Descendant) -> bool:
        """Whether a process has been started since it began, or within the same tick of the clock."""
        return descendant.started >= self._began


class _Counter:
    """A number that the control group counts under ``key``, in a file of version 2 or of version 1."""

    def __init__(self, key: bytes, *paths: str) -> None:
        self._key = key
        self._said = b""
        self._number: int | None = None
        self._fd: int | None = None
        for path in paths:
            with suppress(OSError):
                self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                break

    def read(self) -> int | None:
        """The number, or ``None`` where nobody counts."""
        if self._fd is None:
            return None
        said = os.pread(self._fd, 4096, 0)
        if said != self._said:
            numbers = dict(line.split(b" ", 1) for line in said.splitlines() if b" " in line)
            self._said, self._number = said, int(numbers[self._key]) if self._key in numbers else None
        return self._number


class Usage:
    """What the kernel counts of all that runs here."""

    def __init__(self) -> None:
        self._oom_kills = _Counter(
            b"oom_kill", "/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"
        )
        self._fork_failures = _Counter(
            b"max", "/sys/fs/cgroup/pids.events", "/sys/fs/cgroup/pids/pids.events"
        )
        self.processor_time = ProcessorTime()

    def count(self) -> tuple[int | None, int | None]:
        """How many processes were killed for memory, and how many could not be started."""
        return self._oom_kills.read(), self._fork_failures.read()


class Results:
    """Tells how blocks and interpreters end, those of one branch.

    Attributes:
        present: The number of the present interpreter, which is started with the next block if it is not yet.
    """

    def __init__(self, usage: Usage) -> None:
        self.present = 1
        self._loss = ""
        self._usage = usage
        self._counts = usage.count()

    def lost(self, reason: str) -> None:
        """The present interpreter is gone, or cannot be."""
        self.present += 1
        self._loss = reason

    def result(
        self,
        block: Block,
        code: int | None,
        *,
        ran: bool,
        ended_here: bool,
        output: bytes,
        report: bytes,
        own: int | None,
        living: Collection[int],
    ) -> bytes:
        """The ``RESULT`` frame of a block.

        ``ended_here`` says if this process has killed what ran it; ``own`` is the process of the branch's interpreter,
        and ``living`` are those of all.
        """
        (ooms, failures), self._counts = self._counts, self._usage.count()
        oom_kills, fork_failures = _difference(self._counts[0], ooms), _difference(self._counts[1], failures)
        if oom_kills == NONE and ended_here:
            oom_kills = 0
        code = NONE if code is None else code
        used = self._usage.processor_time.since_last(own, living)
        reason = self._loss.encode(errors="replace")[:_MAX_REASON]
        head = RESULT_HEAD.pack(
            block.interpreter,
            self.present,
            ran,
            code,
            oom_kills,
            fork_failures,
            NONE if used is None else used,
            len(reason),
            len(output),
        )
        return frame(Kind.RESULT, head, reason, output, report)

    def reason(self, status: int) -> str:
        """Why the interpreter has ended, since the last result, with that status of :func:`os.waitpid`."""
        if not os.WIFSIGNALED(status):
            return f"it ended itself with exit code {exit_code(status)} (os._exit or the like)"
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL:
            if _difference(self._usage.count()[0], self._counts[0]) > 0:
                return "it was killed for memory"
            return f"it was killed (signal {number})"
        return f"{(signal.strsignal(number) or 'unknown signal').lower()} (signal {number})"


def exit_code(status: int) -> int:
    """The exit code, as a shell counts, of what ended with ``status``."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _difference(now: int | None, before: int | None) -> int:
    return NONE if now is None or before is None else now - before
