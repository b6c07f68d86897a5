"""The effect of a person's input in a chat, which a resumed chat gets from its journal."""

from __future__ import annotations

from pydantic import JsonValue, TypeAdapter

from codeact_team.core.effects import Begin, Effect, End
from codeact_team.core.events import QuestionAnswered, QuestionAsked

RESET = "/reset"
"""The input that forgets the conversation, and what the code has left in its interpreters."""
UNDO = "/undo"
"""The input that undoes the one before: a resumed chat does not have that any more."""


class ChatInput(Effect[str]):
    """A person is asked for the next input of a chat. A chat that is left is cancelled here, and resumed here."""

    kind = "chat_input"
    asks_person = True
    form = TypeAdapter(str)

    def request(self) -> JsonValue:
        return {}

    @classmethod
    def began(cls, begin: Begin) -> QuestionAsked:
        return QuestionAsked(text="")

    @classmethod
    def ended(cls, end: End) -> QuestionAnswered:
        return QuestionAnswered(text=end.outcome or "", error=end.error)
