"""What the supervisor knows of a block, and what it says of its end."""

from __future__ import annotations

import json
import os
import signal

from codeact_team.sessions.protocol import (
    MAX_ARTIFACT_BYTES,
    MAX_ARTIFACTS,
    TOKEN_BYTES,
    Kind,
    ProtocolError,
    frame,
)
from codeact_team.sessions.runner.supervisor.processes import Counter, Relative, now
from codeact_team.sessions.runner.supervisor.shells import Shell

KILLED = 128 + signal.SIGKILL
"""The exit code of what was killed."""

encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


class Block:
    """A block that runs.

    Attributes:
        token: What its report bears.
        shell: Where it runs; ``None`` for the interpreter.
        counts: What the control group had counted at the end of the block before.
        interrupted: Whether it has been told to end.
    """

    def __init__(self, counts: tuple[int | None, int | None]) -> None:
        self.token = os.urandom(TOKEN_BYTES)
        self.shell: Shell | None = None
        self.counts = counts
        self.interrupted = False
        self._began = now()
        self._artifacts = 0
        self._artifact_bytes = 0

    def add_artifact(self, artifact: bytes) -> None:
        """Count an artifact.

        Raises:
            ProtocolError: If there are too many.
        """
        self._artifacts += 1
        self._artifact_bytes += len(artifact)
        if self._artifacts > MAX_ARTIFACTS or self._artifact_bytes > MAX_ARTIFACT_BYTES:
            raise ProtocolError("there are too many artifacts")

    def may_have_started(self, relative: Relative) -> bool:
        """Whether a process has been started since it began, or within the same tick of the clock."""
        return relative.started >= self._began


class Accounts:
    """Tells how blocks end."""

    def __init__(self) -> None:
        self._oom_kills = Counter(
            b"oom_kill", "/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"
        )
        self._fork_failures = Counter(b"max", "/sys/fs/cgroup/pids.events", "/sys/fs/cgroup/pids/pids.events")
        self._counts = self._count()

    def _count(self) -> tuple[int | None, int | None]:
        return self._oom_kills.read(), self._fork_failures.read()

    def begin(self) -> Block:
        """A block that begins now."""
        return Block(self._counts)

    def result(self, block: Block, code: int | None, lost: str | None, report: bytes, *, ran: bool) -> bytes:
        """The ``RESULT`` frame of a block."""
        oom_kills, fork_failures = self._counts = self._count()
        result = {
            "exit_code": code,
            "ran": ran,
            "lost": lost,
            "oom_kills": _difference(oom_kills, block.counts[0]),
            "fork_failures": _difference(fork_failures, block.counts[1]),
        }
        return frame(Kind.RESULT, encode(result).encode(), b"\n", report)

    def reason(self, status: int) -> str:
        """Why the interpreter has ended, which happened since the last result.

        Args:
            status: As :func:`os.waitpid` says it.
        """
        if not os.WIFSIGNALED(status):
            return f"it ended itself with exit code {exit_code(status)} (os._exit or the like)"
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL:
            if _difference(self._oom_kills.read(), self._counts[0]):
                return "it was killed for memory"
            return f"it was killed (signal {number})"
        return f"{(signal.strsignal(number) or 'unknown signal').lower()} (signal {number})"


def exit_code(status: int) -> int:
    """The exit code, as a shell counts, of what ended with ``status``."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _difference(now: int | None, before: int | None) -> int | None:
    return None if now is None or before is None else now - before
