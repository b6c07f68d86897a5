"""The answer of a run: what the person asked for, in words."""

from __future__ import annotations

from autogen_agentchat.messages import (
    BaseChatMessage,
    CodeExecutionEvent,
    HandoffMessage,
    StopMessage,
    ToolCallSummaryMessage,
    UserInputRequestedEvent,
)

from codeact_team.agents.chat_messages import given_answer, text_of
from codeact_team.effects import Event
from codeact_team.events import BlockEnded, MessageSent, RunBegan
from codeact_team.execution_records import Ending, ExecutionRecord
from codeact_team.observations import encodable, shorten
from codeact_team.parsing import extract_code, take_thoughts_off
from codeact_team.promoted import PromotedListener
from codeact_team.reflection import Verdict

_USER = "user"
"""The source of tasks."""
_NOT_SAID = (HandoffMessage, StopMessage, ToolCallSummaryMessage)
"""Messages that only steer a team, or pass something on."""


class Answers(PromotedListener):
    """A listener that finds a run's answer in its messages."""

    def __init__(self) -> None:
        super().__init__()
        self._begin()

    def _begin(self) -> None:
        self._accepted: str | None = None
        """Of a reviewer, as long as that has not been sent back."""
        self._given: str | None = None
        """By code, or by an agent that acts by code."""
        self._found: str | None = None
        """What else comes nearest to an answer."""
        self._printed: dict[str, str] = {}
        """By each agent's last code, if that succeeded."""
        self._people = {_USER}

    @property
    def best(self) -> str | None:
        """The answer that counts, or the best so far where none does; ``None`` if there is nothing like an answer.

        That of the last accepting review; else the last that an agent has come to by itself; else what was said last, or
        printed by code that succeeded.
        """
        return self._accepted or self._given or self._found

    def hear(self, event: Event) -> None:
        match event:
            case RunBegan():
                self._begin()
            case BlockEnded():
                self._printed[event.agent] = event.output.rstrip() if event.exit_code == 0 else ""
            case MessageSent(message=UserInputRequestedEvent(source=person)):
                self._people.add(person)
            case MessageSent(message=CodeExecutionEvent(source=agent)):
                self._take_output(agent)
            case MessageSent(message=BaseChatMessage() as message) if message.source not in self._people:
                self._take(message)
            case _:
                pass

    def _take(self, message: BaseChatMessage) -> None:
        ending = Ending.from_metadata(message.metadata)
        verdict = Verdict.from_metadata(message.metadata)
        record = ExecutionRecord.from_metadata(message.metadata)
        given = given_answer(message)
        if verdict is not None and ending is None:
            self._accepted = encodable(verdict.answer) if verdict.accepted else None
        elif given is not None:
            self._given = given
        elif ending is not None:
            self._given = text_of(message) if ending.has_answer else self._given
        elif record is not None and record.remark is not None:
            self._take_output(message.source)
        elif not isinstance(message, _NOT_SAID):
            said = take_thoughts_off(text_of(message)).text.strip()
            self._found = said if said and not _is_program(said) else self._found

    def _take_output(self, agent: str) -> None:
        # that of a message says in words where there was none
        if printed := self._printed.get(agent):
            self._found = encodable(shorten(printed))


def _is_program(text: str) -> bool:
    return bool(extract_code(text, ["python", "sh"], default_language="python").blocks)
