"""What became of one block: by whom or by which limit it was stopped, and what its user is told of that."""

from __future__ import annotations

from dataclasses import dataclass

from codeact_team.execution import Outcome
from codeact_team.executors.bounded_output import BoundedOutput
from codeact_team.executors.code_runner import BlockEnd
from codeact_team.executors.stopping import Call
from codeact_team.missing_modules import missing_module, remark
from codeact_team.sandboxes.base import Exit, Sandbox
from codeact_team.sandboxes.limits import Cause, diagnose, told

TIMEOUT_EXIT_CODE = 124
"""What the ``timeout`` command exits with, and AutoGen's executors report."""
CANCELLED_EXIT_CODE = 1
LOST_EXIT_CODE = 128 + 9
DISK_EXIT_CODE = 128 + 25
"""As of a program that the kernel ends for the size of a file."""


@dataclass(slots=True)
class BlockResult:
    """What became of a block; of the last one, this is the result of the call."""

    exit_code: int = 0
    outcome: Outcome = Outcome.COMPLETED
    limit: str | None = None
    remark: str | None = None
    """What the output has to say of it."""
    state_lost: bool = False
    """Whether what blocks leave behind is lost, or was before."""
    end: BlockEnd | None = None
    """How it ended; ``None`` where it never began."""
    missing_module: str | None = None
    """The Python module whose absence ended it."""


def judge(
    ending: Exit, call: Call, sandbox: Sandbox | None, output: BoundedOutput, timeout: int
) -> BlockResult:
    """What became of a block of the call, which had ``timeout`` seconds and ended like that."""
    if call.exceeded is not None:
        return exceeded(call.exceeded, Outcome.COMPLETED if ending.lost is None else Outcome.LOST)
    if call.timed_out:
        words = f"Timeout: stopped after {timeout} s, the limit that `timeout` sets."
        return BlockResult(TIMEOUT_EXIT_CODE, Outcome.TIMED_OUT, f"time (timeout: {timeout})", words)
    if call.stop.cancelled():
        return BlockResult(CANCELLED_EXIT_CODE, Outcome.CANCELLED, remark="Code execution was cancelled.")
    if ending.lost is not None:
        return BlockResult(ending.code, Outcome.LOST)
    if ending.code == 0:
        return BlockResult()
    if not ending.oom_kills and (module := missing_module(output.end())) is not None:
        has_network = sandbox is None or Cause.NETWORK not in sandbox.limits
        words = remark(module, has_network=has_network)
        return BlockResult(ending.code, missing_module=module, remark=words)
    limit = limit_behind(ending, sandbox, output)
    return BlockResult(ending.code, limit=limit, remark=limit)


def exceeded(field: str, outcome: Outcome = Outcome.COMPLETED) -> BlockResult:
    """The workspace has grown too much, by the limit that ``field`` sets."""
    limit = told(Cause.DISK, field)
    return BlockResult(DISK_EXIT_CODE, outcome, limit, f"{limit} Remove files that are not needed.")


def limit_behind(ending: Exit, sandbox: Sandbox | None, output: BoundedOutput) -> str | None:
    """Which limit of the sandbox ended a block like that, if one did."""
    if sandbox is None:
        return None
    return diagnose(
        sandbox.limits,
        exit_code=ending.code,
        output=output.end(),
        oom_kills=ending.oom_kills,
        fork_failures=ending.fork_failures,
    )
