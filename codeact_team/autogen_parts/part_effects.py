"""What AutoGen's own agents ask of the world, as effects that pass the door."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

from autogen_core.code_executor import CodeBlock, CodeResult
from autogen_core.tools import ToolResult
from pydantic import JsonValue, TypeAdapter
from pydantic_core import to_jsonable_python

from codeact_team.effects import Effect, speaker
from codeact_team.events import (
    BlockBegan,
    BlockEnded,
    Code,
    QuestionAnswered,
    QuestionAsked,
    ToolCallBegan,
    ToolCallEnded,
    block_ended,
)
from codeact_team.execution import CallOutcome
from codeact_team.visibility import cut

T = TypeVar("T")

_MAX_SHOWN = 300


class PartCall(Effect[T]):
    """A tool is called, or a memory asked.

    Args:
        name: Its name.
        arguments: Its arguments.
        form: Dumps and loads what it returns.
    """

    def __init__(self, name: str, arguments: Mapping[str, Any] | None, form: TypeAdapter[T]) -> None:
        self.source = speaker()
        self._name = name
        self._arguments = arguments or {}
        self._form = form

    def request(self) -> JsonValue:
        return {"tool": self._name, "arguments": self._plain_arguments()}

    def dump(self, outcome: T) -> JsonValue:
        return self._form.dump_python(outcome, mode="json")

    def load(self, data: JsonValue) -> T:
        return self._form.validate_python(data)

    def began(self, span: int) -> ToolCallBegan:
        shown = cut(json.dumps(self._plain_arguments(), ensure_ascii=False), _MAX_SHOWN)
        return ToolCallBegan(span=span, agent=self.source, name=self._name, arguments=shown)

    def _plain_arguments(self) -> JsonValue:
        return to_jsonable_python(dict(self._arguments), fallback=repr)

    def ended(self, span: int, outcome: T | None, error: BaseException | None) -> ToolCallEnded:
        event = ToolCallEnded(span=span, agent=self.source, name=self._name, outcome=CallOutcome.OK)
        if isinstance(error, asyncio.CancelledError):
            event.outcome = CallOutcome.CANCELLED
        elif error is not None:
            event.outcome, event.error = CallOutcome.FAILED, f"{type(error).__name__}: {error}"
        elif isinstance(outcome, ToolResult) and outcome.is_error:
            event.outcome, event.error = CallOutcome.FAILED, cut(outcome.to_text(), _MAX_SHOWN)
        return event


class PartBlock(Effect[CodeResult]):
    """Code blocks run in an executor."""

    def __init__(self, blocks: Sequence[CodeBlock]) -> None:
        self.source = speaker()
        self._blocks = [Code(block.language, block.code) for block in blocks]

    def request(self) -> JsonValue:
        return {"blocks": [{"language": block.language, "code": block.code} for block in self._blocks]}

    def dump(self, outcome: CodeResult) -> JsonValue:
        return {"exit_code": outcome.exit_code, "output": outcome.output}

    def load(self, data: JsonValue) -> CodeResult:
        return CodeResult(**cast("dict[str, Any]", data))

    def began(self, span: int) -> BlockBegan:
        return BlockBegan(span=span, agent=self.source, blocks=self._blocks)

    def ended(self, span: int, outcome: CodeResult | None, error: BaseException | None) -> BlockEnded:
        return block_ended(span, self.source, outcome, error)


class PersonInput(Effect[str]):
    """A person is asked for input."""

    def __init__(self, prompt: str) -> None:
        self.source = speaker()
        self._prompt = prompt

    def request(self) -> JsonValue:
        return {"input": self._prompt}

    def dump(self, outcome: str) -> JsonValue:
        return outcome

    def load(self, data: JsonValue) -> str:
        return str(data)

    def began(self, span: int) -> QuestionAsked:
        return QuestionAsked(span=span, agent=self.source, text=self._prompt)

    def ended(self, span: int, outcome: str | None, error: BaseException | None) -> QuestionAnswered:
        said = None if error is None else f"{type(error).__name__}: {error}"
        return QuestionAnswered(span=span, agent=self.source, text=outcome or "", error=said)
