"""What a run tells whoever listens."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from autogen_agentchat.messages import BaseAgentEvent, BaseChatMessage
from autogen_core.models import RequestUsage

from codeact_team.execution import CallOutcome


class Ending(StrEnum):
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


@dataclass(frozen=True)
class RunResult:
    """What came of a run.

    Attributes:
        ending: How it ended.
        usage: The tokens that the messages account for.
        messages: How many messages there were, the task included.
        seconds: Wall-clock time, from the config to the last thing stopped.
        stop_reason: Why the team stopped, in its own words; of a single agent, which limit has cut its work short.
        error: What went wrong and what to do, where something did.
        signal: The signal that stopped it, where one did.
        tools: What code has called on the host, by tool, in the order of the first calls.
    """

    ending: Ending
    usage: RequestUsage
    messages: int
    seconds: float
    stop_reason: str | None = None
    error: str | None = None
    signal: signal.Signals | None = None
    tools: Sequence[ToolUse] = ()

    @property
    def exit_code(self) -> int:
        """0 accepted, 1 not accepted, 2 failed, and 128 + n, as shells have it, where signal n stopped the run."""
        if self.signal is not None:
            return 128 + self.signal
        return {Ending.ACCEPTED: 0, Ending.NOT_ACCEPTED: 1}.get(self.ending, 2)


class EventSink(Protocol):
    """Listens to one run: ``opened`` once at most, then messages as they come, at last ``ended``."""

    def opened(self, loosenings: Sequence[str]) -> None:
        """The team is loaded.

        Args:
            loosenings: Each setting of its sandboxes that is weaker than the default, in words.
        """

    def message(self, message: BaseAgentEvent | BaseChatMessage) -> None:
        """Somebody said or did something; chunks of a text or of a program's output come as they are made."""

    def ended(self, result: RunResult) -> None:
        """The run is over, and what it had started is stopped."""
