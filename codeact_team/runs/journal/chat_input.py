"""What a person enters in a chat, as an effect: a resumed chat gets it from its journal."""

from __future__ import annotations

from pydantic import JsonValue, TypeAdapter

from codeact_team.core.effects import Effect, error_text
from codeact_team.core.events import QuestionAnswered, QuestionAsked

RESET = "/reset"
"""The input that forgets the conversation, and what the code has left in its interpreters."""
UNDO = "/undo"
"""The input that undoes the one before: a resumed chat does not have that any more."""


class ChatInput(Effect[str]):
    """A person is asked for the next input of a chat. A chat that is left is cancelled here, and resumed here."""

    kind = "chat_input"
    form = TypeAdapter(str)

    def request(self) -> JsonValue:
        return {}

    def began(self) -> QuestionAsked:
        return QuestionAsked(text="")

    def ended(self, outcome: str | None, error: BaseException | None) -> QuestionAnswered:
        return QuestionAnswered(text=outcome or "", error=error_text(error))
