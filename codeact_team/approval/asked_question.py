"""Asking a person for approval, as an effect that passes the door."""

from __future__ import annotations

from dataclasses import asdict

from pydantic import JsonValue, TypeAdapter

from codeact_team.approval.handlers import Answer
from codeact_team.approval.question import Question
from codeact_team.effects import Effect, error_text
from codeact_team.events import QuestionAnswered, QuestionAsked

NOBODY_THERE = (
    "nobody is there to ask for approval: run this on a terminal, give the agent an approval_handler, or run it within "
    "codeact_team.approval.asking(handler)"
)


class AskedQuestion(Effect[Answer | None]):
    """A person is asked whether code may run, or a tool may be called; the outcome is ``None`` where nobody is there.

    Args:
        question: What is asked.
        parks: Whether the run is to wait for the answer where nobody is there.
    """

    kind = "approval"
    form = TypeAdapter[Answer | None](Answer | None)

    def __init__(self, question: Question, *, parks: bool = False) -> None:
        self.parks = parks
        self.source = question.source
        self.question = question

    def request(self) -> JsonValue:
        return {"approval": asdict(self.question)}

    def to_text(self) -> str:
        """What is asked, fit to be shown."""
        return self.question.to_text()

    def began(self, span: int) -> QuestionAsked:
        return QuestionAsked(span=span, agent=self.source, text=self.to_text())

    def ended(self, span: int, outcome: Answer | None, error: BaseException | None) -> QuestionAnswered:
        event = QuestionAnswered(span=span, agent=self.source)
        if outcome is not None:
            said = ("always" if outcome.always else "yes") if outcome.allowed else "no"
            event.text = f"{said}: {outcome.reason}" if outcome.reason else said
        else:
            event.error = error_text(error) or NOBODY_THERE
        return event
