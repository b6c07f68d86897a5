"""What came of a run."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from autogen_core.models import RequestUsage

from codeact_team.effects import Event
from codeact_team.execution import CallOutcome


class RunEnding(StrEnum):
    """How a run came to its end."""

    ACCEPTED = "accepted"
    """The work was accepted."""
    NOT_ACCEPTED = "not accepted"
    """The team ended without accepted work."""
    FAILED = "failed"
    """It could not run, or not go on: bad input, or an environment that does not work."""
    STOPPED = "stopped"
    """A signal stopped it."""


@dataclass(frozen=True)
class ToolUse:
    """What became of the calls of one tool.

    Attributes:
        name: The tool's, as code calls it.
        outcomes: How many calls ended in which way.
        seconds: Wall-clock time of all of them together; those side by side count each.
    """

    name: str
    outcomes: Mapping[CallOutcome, int]
    seconds: float


@dataclass(kw_only=True)
class RunResult(Event):
    """What came of a run; the last thing told of it.

    Attributes:
        ending: How it ended.
        usage: The tokens of all calls of models.
        messages: How many messages there were, the task included.
        seconds: Wall-clock time, from the config to the last thing stopped.
        stop_reason: Why the team stopped, in its own words; of a single agent, which limit has cut its work short.
        objection: Why the work does not count as accepted, where it does not and nobody has judged it.
        error: What went wrong and what to do, where something did.
        is_transient: Whether the same run may succeed a little later, as a model's server was not there, or overloaded.
        signal: The signal that stopped it, where one did.
        tools: What code has called on the host, by tool, in the order of the first calls.
    """

    type: Literal["result"] = "result"
    ending: RunEnding
    usage: RequestUsage
    messages: int
    seconds: float
    stop_reason: str | None = None
    objection: str | None = None
    error: str | None = None
    is_transient: bool = False
    signal: signal.Signals | None = None
    tools: Sequence[ToolUse] = ()

    @property
    def exit_code(self) -> int:
        """0 accepted, 1 not accepted, 2 failed, 75 if the same run may succeed later, 128 + n if signal n stopped it.

        The last two as ``sysexits`` and shells have them.
        """
        if self.signal is not None:
            return 128 + self.signal
        if self.is_transient:
            return os.EX_TEMPFAIL
        return {RunEnding.ACCEPTED: 0, RunEnding.NOT_ACCEPTED: 1}.get(self.ending, 2)
