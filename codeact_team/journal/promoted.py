"""A listener that is spared what does not count: the events of attempts which were not chosen, and of code that runs again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from dataclasses import dataclass, field

from codeact_team.core.effects import Event
from codeact_team.core.events import (
    AttemptBegan,
    AttemptEnded,
    BlocksRepeated,
    BlocksRepeating,
    Output,
    PromotionEnded,
    RunBegan,
    RunParked,
    TurnEnded,
    Words,
)
from codeact_team.journal.result import RunResult


@dataclass(eq=False)
class _Attempt:
    held: list[Event] = field(default_factory=list[Event])
    """Its events, without pieces of text: the event of an end has the whole text."""


class PromotedListener(ABC):
    """A listener that receives the events of an attempt when that is promoted, and none of the other attempts'.

    It receives the begin and the end of each attempt as they happen. What code does that runs again, to restore its variables, it
    does not receive: it has happened before. Once a run waits for an answer, it receives
    only the result: the code that is stopped then runs again when the run is resumed.
    """

    def __init__(self) -> None:
        self._waits = False
        self._inside: dict[int, _Attempt] = {}
        """The attempts, by the span of each, and by those that are open in it."""
        self._attempts: dict[int | None, dict[int, _Attempt]] = defaultdict(dict)
        """The attempts that may still be promoted, by the span of their turn."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunBegan | RunParked | RunResult):
            self._waits = isinstance(event, RunParked)
        elif self._waits:
            return
        attempt = self._inside.get(event.parent or 0)
        if attempt is not None:
            self._hold(attempt, event)
            return
        match event:
            case AttemptBegan():
                self._attempts[event.parent][event.attempt] = self._inside[event.span] = _Attempt()
            case BlocksRepeating():
                self._inside[event.span] = _Attempt()
            case AttemptEnded() | BlocksRepeated():
                self._inside.pop(event.span, None)
            case PromotionEnded():
                promoted = self._attempts.pop(event.parent, {}).get(event.attempt, _Attempt())
                for held in promoted.held:
                    self(held)
            case TurnEnded():
                self._attempts.pop(event.span, None)
            case _:
                pass
        self.hear(event)

    @abstractmethod
    def hear(self, event: Event) -> None:
        """Receive an event that is in no attempt, or in one that is promoted, in order."""

    def _hold(self, attempt: _Attempt, event: Event) -> None:
        span: int | None = getattr(event, "span", None)
        if span is not None and self._inside.pop(span, None) is None:
            self._inside[span] = attempt
        if not isinstance(event, Words | Output):
            attempt.held.append(event)
