"""What AutoGen's own agents ask of the world, as effects that pass the door."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, TypeVar

from autogen_core.code_executor import CodeResult
from autogen_core.tools import TextResultContent, ToolResult
from pydantic import JsonValue, TypeAdapter
from pydantic_core import to_jsonable_python

from codeact_team.code_effects import CodeRun
from codeact_team.effects import Effect, error_text
from codeact_team.events import (
    QuestionAnswered,
    QuestionAsked,
    ToolCallBegan,
    ToolCallEnded,
)
from codeact_team.execution import CallOutcome
from codeact_team.visibility import cut

T = TypeVar("T")

_MAX_SHOWN = 300
UNKNOWN = (
    "The run was interrupted while this was under way, and it was not done again: whether it was done is not known. Find out "
    "before you do it again."
)


class PartCall(Effect[T]):
    """A tool is called."""

    kind = "part_call"

    def __init__(
        self, part: object, name: str, arguments: Mapping[str, Any] | None, form: TypeAdapter[T]
    ) -> None:
        self.part = part
        self.form = form
        self._name = name
        self._arguments = arguments or {}

    def request(self) -> JsonValue:
        return {"tool": self._name, "arguments": self._plain_arguments()}

    def began(self, span: int) -> ToolCallBegan:
        shown = cut(json.dumps(self._plain_arguments(), ensure_ascii=False), _MAX_SHOWN)
        return ToolCallBegan(span=span, agent=self.source, name=self._name, arguments=shown)

    def unknown(self) -> Any:
        return ToolResult(name=self._name, result=[TextResultContent(content=UNKNOWN)], is_error=True)

    def _plain_arguments(self) -> JsonValue:
        return to_jsonable_python(dict(self._arguments), fallback=repr)

    def ended(self, span: int, outcome: T | None, error: BaseException | None) -> ToolCallEnded:
        event = ToolCallEnded(span=span, agent=self.source, name=self._name, outcome=CallOutcome.OK)
        if isinstance(error, asyncio.CancelledError):
            event.outcome = CallOutcome.CANCELLED
        elif error is not None:
            event.outcome, event.error = CallOutcome.FAILED, error_text(error) or ""
        elif isinstance(outcome, ToolResult) and outcome.is_error:
            event.outcome, event.error = CallOutcome.FAILED, cut(outcome.to_text(), _MAX_SHOWN)
        return event


class MemoryCall(PartCall[T]):
    """A memory is asked, as if it was a tool."""

    kind = "memory_call"

    def unknown(self) -> None:
        """There is nobody who could be told, and a memory may hold something twice."""


class PartBlock(CodeRun[CodeResult]):
    """Code blocks of an agent of AutoGen's run."""

    kind = "part_block"
    form = TypeAdapter(CodeResult)

    def unknown(self) -> CodeResult:
        return CodeResult(exit_code=1, output=UNKNOWN)


class PersonInput(Effect[str]):
    """A person is asked for input."""

    kind = "person_input"
    form = TypeAdapter(str)

    def __init__(self, prompt: str) -> None:
        self._prompt = prompt

    def request(self) -> JsonValue:
        return {"input": self._prompt}

    def to_text(self) -> str:
        """What is asked."""
        return self._prompt

    def began(self, span: int) -> QuestionAsked:
        return QuestionAsked(span=span, agent=self.source, text=self.to_text())

    def ended(self, span: int, outcome: str | None, error: BaseException | None) -> QuestionAnswered:
        return QuestionAnswered(span=span, agent=self.source, text=outcome or "", error=error_text(error))
