"""What came of a run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from signal import Signals

from autogen_core.models import RequestUsage

from codeact_team.effects import Event
from codeact_team.execution import CallOutcome
from codeact_team.runs.run_files import RunFile


class RunEnding(StrEnum):
    """How a run came to its end."""

    ACCEPTED = "accepted"
    NOT_ACCEPTED = "not accepted"
    """The team ended without accepted work."""
    FAILED = "failed"
    """It could not run, or not go on: bad input, or an environment that does not work."""
    STOPPED = "stopped"
    """A signal stopped it."""
    PARKED = "parked"
    """It waits for the answer of a person who was not there."""


@dataclass
class ToolUse:
    """What became of the calls that code has made of one tool."""

    name: str
    outcomes: dict[CallOutcome, int] = field(default_factory=dict[CallOutcome, int])
    seconds: float = 0.0
    """Wall-clock time; calls side by side count each."""


@dataclass
class Cost:
    """What a run has cost in money, by the prices of its budget.

    Attributes:
        amount: For all calls of models whose tokens and price are known.
        currency: As the config has it.
        unpriced: Models that were asked and have no price.
        uncounted: How many calls of models have an unknown number of tokens.
    """

    amount: float
    currency: str
    unpriced: Sequence[str] = ()
    uncounted: int = 0

    def to_text(self) -> str:
        """The cost for a person, with what is not known of it."""
        amount = "<0.0001" if 0 < self.amount < 0.0001 else f"{self.amount:,.4f}"
        unknown = [f"no price for {model}" for model in self.unpriced]
        if self.uncounted:
            unknown.append(f"unknown tokens of {self.uncounted} call{'' if self.uncounted == 1 else 's'}")
        told = f"{amount} {self.currency}"
        return f"at least {told} ({', '.join(unknown)})" if unknown else told


@dataclass(kw_only=True)
class RunResult(Event, type="result"):
    """What came of a run; the last thing told of it.

    Attributes:
        cost: ``None`` where no prices are known.
        messages: How many there were, the task included.
        steps: How often code ran.
        seconds: Wall-clock time, from the config to the last thing stopped.
        stop_reason: Why the team stopped, in its own words; of a single agent, which limit has cut its work short.
        objection: Why the work does not count as accepted, where it does not and nobody has judged it.
        error: What went wrong, and what to do.
        is_transient: Whether the same run may succeed a little later.
        is_of_infrastructure: Whether it failed by what is around it: the model's server, or the container engine.
        tools: In the order of the first calls.
        answer: What the person asked for, in words, or as JSON where an agent has an ``output_schema``. It is accepted
            if the ending is; else it is the best so far. ``None`` where there is nothing like an answer. Hostile data.
        files: What it has made or changed in its workspaces; a thousand at most.
        file_notes: What else there is to say of them, in words, such as how many more there are.
        files_due: How many files are not where they were wanted, as they could not be copied there, or are not to be had.
    """

    ending: RunEnding
    usage: RequestUsage
    messages: int
    seconds: float
    stop_reason: str | None = None
    objection: str | None = None
    error: str | None = None
    is_transient: bool = False
    is_of_infrastructure: bool = False
    signal: Signals | None = None
    tools: Sequence[ToolUse] = ()
    answer: str | None = None
    files: Sequence[RunFile] = ()
    file_notes: Sequence[str] = ()
    files_due: int = 0
    cost: Cost | None = None
    steps: int = 0

    @property
    def exit_code(self) -> int:
        """0 accepted, 1 not accepted, 2 failed, 3 parked, 75 if the same run may succeed later, 128 + n if signal n stopped it.

        The last two as ``sysexits`` and shells have them. Accepted work has failed, too, if its files could not be
        copied to where they were wanted.
        """
        if self.signal is not None:
            return 128 + self.signal
        if self.is_transient:
            return os.EX_TEMPFAIL
        if self.ending is RunEnding.ACCEPTED and self.files_due:
            return 2
        return {RunEnding.ACCEPTED: 0, RunEnding.NOT_ACCEPTED: 1, RunEnding.PARKED: 3}.get(self.ending, 2)
