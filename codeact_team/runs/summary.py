"""What a run has come to, by what is told of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from signal import Signals

from autogen_agentchat.base import ChatAgent, Team

from codeact_team.agents import ReflectionAgent
from codeact_team.autogen_internals import components_in
from codeact_team.effects import Listener
from codeact_team.errors import BudgetError
from codeact_team.runs.acceptance import Acceptance
from codeact_team.runs.answers import Answers
from codeact_team.runs.costs import Costs
from codeact_team.runs.failures import explain, is_of_infrastructure, is_transient
from codeact_team.runs.result import RunEnding, RunResult
from codeact_team.teams import ReflectionTermination


@dataclass(frozen=True)
class WorkEnd:
    """How a run, or a reset, ended; fields as in :class:`RunResult`."""

    stop_reason: str | None = None
    is_broken_off: bool = False
    is_parked: bool = False
    """Whether it waits for an answer."""
    error: str | None = None
    is_transient: bool = False
    is_of_infrastructure: bool = False
    signal: Signals | None = None

    @classmethod
    def by(cls, failure: BaseException) -> WorkEnd:
        """The end that a failure has made."""
        if not isinstance(failure, Exception):
            return cls("it was cancelled", is_broken_off=True)
        if isinstance(failure, BudgetError):
            return cls(str(failure), is_broken_off=True)
        return cls(
            error=explain(failure),
            is_transient=is_transient(failure),
            is_of_infrastructure=is_of_infrastructure(failure),
        )

    @property
    def came_by_itself(self) -> bool:
        """Whether the team ended its work, well or not."""
        return self.error is None and self.signal is None and not self.is_broken_off


class Summary:
    """Listens to a run, and makes its result.

    Args:
        in_all: Whether what the tasks of a team have cost is counted together; all else is of the last.

    Attributes:
        listeners: What has to be told what happens.
    """

    def __init__(self, *, in_all: bool = False) -> None:
        self._acceptance, self._answers, self._costs = Acceptance(), Answers(), Costs(in_all=in_all)
        self.listeners: Sequence[Listener] = (self._acceptance, self._answers, self._costs)

    def begin(self, team: Team | ChatAgent) -> None:
        """Note who works."""
        self._acceptance.reviewed = _is_reviewed(team)

    def result(self, end: WorkEnd, seconds: float) -> RunResult:
        """What has come of the work that has ended so, after so much wall-clock time; its files are left out."""
        acceptance, costs = self._acceptance, self._costs
        acceptance.broken_off = end.is_broken_off or acceptance.is_broken_off_by(end.stop_reason)
        if end.signal is not None:
            ending = RunEnding.STOPPED
        elif end.error is not None:
            ending = RunEnding.FAILED
        elif end.is_parked:
            ending = RunEnding.PARKED
        else:
            ending = RunEnding.ACCEPTED if acceptance.accepted else RunEnding.NOT_ACCEPTED
        return RunResult(
            ending=ending,
            usage=costs.usage,
            messages=costs.messages,
            steps=costs.steps,
            seconds=seconds,
            stop_reason=end.stop_reason or acceptance.cut_short,
            objection=acceptance.objection if ending is RunEnding.NOT_ACCEPTED else None,
            error=end.error,
            is_transient=end.is_transient,
            is_of_infrastructure=end.is_of_infrastructure,
            signal=end.signal,
            tools=costs.tools,
            answer=self._answers.best,
            cost=costs.cost,
        )


def _is_reviewed(team: Team | ChatAgent) -> bool:
    """Whether somebody in a team judges the work of the others, or something waits for a judgement."""
    return any(isinstance(part, ReflectionAgent | ReflectionTermination) for part in components_in(team))
