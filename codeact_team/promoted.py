"""Listening to attempts that are made side by side as if only the one had been made that its agent went on with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from dataclasses import dataclass, field

from codeact_team.effects import Event
from codeact_team.events import AttemptBegan, AttemptEnded, BranchPromoted, Output, TurnEnded, Words


@dataclass(eq=False)
class _Attempt:
    held: list[Event] = field(default_factory=list[Event])
    """What has happened in it. Not the pieces in which text comes: what ends has all of it."""


class PromotedListener(ABC):
    """A listener that is told of an attempt when that is promoted, and nothing of what happens in the others.

    The begin and the end of each attempt are told as they come.
    """

    def __init__(self) -> None:
        self._inside: dict[int, _Attempt] = {}
        """By its number, each span that is open in an attempt, and that of the attempt itself."""
        self._attempts: dict[int | None, dict[int, _Attempt]] = defaultdict(dict)
        """By the span of the turn, those of which it is not known whether they are promoted."""

    def __call__(self, event: Event) -> None:
        """Hear of an event."""
        attempt = self._inside.get(event.parent or 0)
        if attempt is not None:
            self._hold(attempt, event)
            return
        match event:
            case AttemptBegan():
                self._attempts[event.parent][event.attempt] = self._inside[event.span] = _Attempt()
            case AttemptEnded():
                self._inside.pop(event.span, None)
            case BranchPromoted(is_over=True):
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
        """Hear of what is not in an attempt, or is in one that is promoted, in order."""

    def _hold(self, attempt: _Attempt, event: Event) -> None:
        span: int | None = getattr(event, "span", None)
        if span is not None and self._inside.pop(span, None) is None:
            self._inside[span] = attempt
        if not isinstance(event, Words | Output):
            attempt.held.append(event)
