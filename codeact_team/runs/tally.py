"""What a run amounts to: whether the work is accepted, and what it has cost."""

from __future__ import annotations

from collections import Counter

from autogen_agentchat.messages import (
    BaseAgentEvent,
    BaseChatMessage,
    CodeExecutionEvent,
    ModelClientStreamingChunkEvent,
)
from autogen_core.models import RequestUsage

from codeact_team.observations import Ending, ExecutionRecord, ToolCallRecord
from codeact_team.reflection import Verdict
from codeact_team.runs.events import ToolUse

_OPEN = (Ending.ANSWERED, Ending.HANDED_OFF)
"""Endings of an agent's work that say nothing against it."""


class Tally:
    """Keeps count of the messages of a run."""

    def __init__(self) -> None:
        self._verdict: Verdict | None = None
        self._exit_code: int | None = None
        self._ending: tuple[str, Ending] | None = None
        self._answered = False
        self._prompt_tokens = self._completion_tokens = 0
        self._calls: dict[str, list[ToolCallRecord]] = {}
        self.messages = 0
        """How many there were, the task included and chunks not."""

    @property
    def accepted(self) -> bool:
        """Whether the work counts as accepted.

        By the last verdict, if anybody gave one. Else an agent that says how its work ended must have had an answer,
        and not have come to a limit; the last code that ran, if any did, must not have failed; and there must be an
        answer at all.
        """
        if self._verdict is not None:
            return self._verdict.accepted
        if self.cut_short is not None:
            return False
        if self._exit_code is not None:
            return self._exit_code == 0
        return self._answered

    @property
    def cut_short(self) -> str | None:
        """Which agent's work came to another end than an answer, and to which; ``None`` if no such work is known."""
        if self._ending is None or self._ending[1] in _OPEN:
            return None
        source, ending = self._ending
        return f"{source}: {ending.value.replace('_', ' ')}"

    @property
    def usage(self) -> RequestUsage:
        """The tokens that the messages account for."""
        return RequestUsage(self._prompt_tokens, self._completion_tokens)

    @property
    def tools(self) -> list[ToolUse]:
        """What code has called on the host."""
        return [
            ToolUse(name, dict(Counter(call.outcome for call in calls)), sum(call.seconds for call in calls))
            for name, calls in self._calls.items()
        ]

    def add(self, message: BaseAgentEvent | BaseChatMessage) -> None:
        """Count a message."""
        if isinstance(message, ModelClientStreamingChunkEvent):
            return
        self.messages += 1
        if (usage := message.models_usage) is not None:
            self._prompt_tokens += usage.prompt_tokens
            self._completion_tokens += usage.completion_tokens
        if isinstance(message, CodeExecutionEvent):
            self._exit_code = message.result.exit_code
        if isinstance(message, BaseChatMessage):
            self._add_chat(message)

    def _add_chat(self, message: BaseChatMessage) -> None:
        if (verdict := Verdict.from_metadata(message.metadata)) is not None:
            self._verdict = verdict
        if (record := ExecutionRecord.from_metadata(message.metadata)) is not None:
            self._exit_code = record.exit_code
            for call in record.tool_calls:
                self._calls.setdefault(call.name, []).append(call)
        if (ending := Ending.from_metadata(message.metadata)) is not None:
            self._ending = message.source, ending
        # the first one is the task
        self._answered = self.messages > 1
