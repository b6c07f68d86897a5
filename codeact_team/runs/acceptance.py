"""Whether the work of a run counts as accepted."""

from __future__ import annotations

from autogen_agentchat.messages import BaseChatMessage, CodeExecutionEvent

from codeact_team.effects import Event
from codeact_team.events import BudgetSpent, MessageSent, RunBegan
from codeact_team.execution_records import Ending, ExecutionRecord
from codeact_team.reflection import Verdict

_OPEN = (Ending.ANSWERED, Ending.HANDED_OFF)
"""Endings of an agent's work that say nothing against it."""


class Acceptance:
    """A listener that judges a run by its messages."""

    def __init__(self, *, reviewed: bool = False) -> None:
        self.reviewed = reviewed
        """Whether somebody in the team is to judge the work of the others."""
        self._begin()

    def _begin(self) -> None:
        self.broken_off = False
        """Whether the team was stopped in the middle of its work."""
        self._verdict: Verdict | None = None
        self._own_verdict: Verdict | None = None
        """Of an agent on its own answer."""
        self._exit_code: int | None = None
        self._ending: tuple[str, Ending] | None = None
        self._used_up: set[str] = set()

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunBegan):
            self._begin()
        elif isinstance(event, BudgetSpent):
            self._used_up.update(filter(None, [event.used_up]))
        elif isinstance(event, MessageSent):
            if isinstance(event.message, CodeExecutionEvent):
                self._exit_code = event.message.result.exit_code
            if isinstance(event.message, BaseChatMessage):
                self._take(event.message)

    @property
    def accepted(self) -> bool:
        """Whether the work counts as accepted: by the verdict; without one, where there is no objection."""
        return self.objection is None if self.verdict is None else self.verdict.accepted

    @property
    def verdict(self) -> Verdict | None:
        """The judgement that counts: the last of a reviewer; where nobody reviews, an agent's on its own answer."""
        return self._verdict or (None if self.reviewed else self._own_verdict)

    @property
    def objection(self) -> str | None:
        """Why work that nobody has judged does not count as accepted; ``None`` if it does, or somebody has.

        Where somebody is to review it, that has to happen. Elsewhere no agent's work may have been cut short, and the last
        code must have succeeded or, where none has run, an agent have come to its answer. That a limit has ended the
        team proves nothing.
        """
        if self.verdict is not None:
            return None
        if self.reviewed:
            return "nobody has reviewed the work"
        if self.broken_off:
            return "the work was broken off"
        if self.cut_short is not None:
            return self.cut_short
        if self._exit_code is not None:
            return None if self._exit_code == 0 else "the last code failed"
        return None if self._is_answered else "no code has run, and nobody has reviewed the work"

    def is_broken_off_by(self, stop_reason: str | None) -> bool:
        """Whether that is the budget's reason, and no agent had come to its answer just then."""
        return stop_reason in self._used_up and not self._is_answered

    @property
    def _is_answered(self) -> bool:
        return self._ending is not None and self._ending[1] is Ending.ANSWERED

    @property
    def cut_short(self) -> str | None:
        """Which agent's work came to another end than an answer, and to which; ``None`` if no such work is known."""
        if self._ending is None or self._ending[1] in _OPEN:
            return None
        source, ending = self._ending
        return f"{source}: {ending.value.replace('_', ' ')}"

    def _take(self, message: BaseChatMessage) -> None:
        if (record := ExecutionRecord.from_metadata(message.metadata)) is not None:
            self._exit_code = record.exit_code
        verdict = Verdict.from_metadata(message.metadata)
        if (ending := Ending.from_metadata(message.metadata)) is not None:
            self._ending = message.source, ending
            self._own_verdict = verdict
        elif verdict is not None:
            self._verdict = verdict
