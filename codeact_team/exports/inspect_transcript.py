"""A recorded run in Inspect's words. Needs ``inspect-ai``."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, cast

from autogen_core.models import RequestUsage
from inspect_ai.event import (
    ApprovalEvent,
    InfoEvent,
    InputEvent,
    ModelEvent,
    ScoreEvent,
    SpanBeginEvent,
    SpanEndEvent,
    ToolEvent,
)
from inspect_ai.event import Event as InspectEvent
from inspect_ai.model import (
    ChatCompletionChoice,
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    Content,
    ContentImage,
    ContentReasoning,
    ContentText,
    GenerateConfig,
    ModelOutput,
    ModelUsage,
    StopReason,
)
from inspect_ai.scorer import CORRECT, INCORRECT, Score
from inspect_ai.tool import ToolCall, ToolCallContent, ToolCallError, ToolInfo, ToolResult
from pydantic import JsonValue, TypeAdapter, ValidationError

from codeact_team.agents.observations import load_result
from codeact_team.core.effects import Event, OtherEffectBegan, OtherEffectEnded, OtherEvent
from codeact_team.core.events import (
    Approval,
    AttemptBegan,
    AttemptEnded,
    BlockBegan,
    BlockEnded,
    BlocksRepeated,
    BlocksRepeating,
    BudgetSpent,
    Decision,
    Judged,
    ModelCallBegan,
    ModelCallEnded,
    Opened,
    ProcessBegan,
    ProcessEnded,
    QuestionAnswered,
    QuestionAsked,
    RequestBegan,
    RequestDenied,
    RequestEnded,
    RunBegan,
    RunEnded,
    SandboxLost,
    ToolCallBegan,
    ToolCallEnded,
    TurnBegan,
    TurnEnded,
    dump,
)
from codeact_team.core.execution import Artifact, CallOutcome, SessionResult, bare_type
from codeact_team.core.process_effects import outcome_of
from codeact_team.errors import JournalError
from codeact_team.journal.recorded_run import RecordedEffect
from codeact_team.text.amounts import size_of
from codeact_team.text.quoting import fenced

_ARGUMENTS = TypeAdapter(dict[str, Any])
_STOP_REASONS: Mapping[str, StopReason] = {
    "stop": "stop",
    "length": "max_tokens",
    "function_calls": "tool_calls",
    "content_filter": "content_filter",
}


def _output_of(model: str, result: Mapping[str, Any]) -> ModelOutput:
    """The answer of a model, from the JSON of a ``CreateResult``."""
    spent = result["usage"]
    reason = _STOP_REASONS.get(result["finish_reason"], "unknown")
    return ModelOutput(
        model=model,
        choices=[ChatCompletionChoice(message=_assistant(result, model), stop_reason=reason)],
        usage=_usage_of(spent["prompt_tokens"], spent["completion_tokens"]),
    )


def _usage_of(given: int, written: int) -> ModelUsage:
    """The tokens of a call."""
    return ModelUsage(input_tokens=given, output_tokens=written, total_tokens=given + written)


def _image_of(mime_type: str, base64: str) -> ContentImage:
    """A picture."""
    return ContentImage(image=f"data:{mime_type};base64,{base64}")


def _messages(message: Mapping[str, Any]) -> list[ChatMessage]:
    content: Any = message["content"]
    match message["type"]:
        case "SystemMessage":
            return [ChatMessageSystem(content=content)]
        case "UserMessage":
            return [ChatMessageUser(content=_contents(content), metadata={"source": message["source"]})]
        case "AssistantMessage":
            return [_assistant(message, None)]
        case _:
            return [_tool_message(result) for result in content]


def _assistant(message: Mapping[str, Any], model: str | None) -> ChatMessageAssistant:
    content: Any = message["content"]
    thought: str | None = message.get("thought")
    parts: list[Content] = [ContentReasoning(reasoning=thought)] if thought else []
    if isinstance(content, str):
        return ChatMessageAssistant(
            content=[*parts, ContentText(text=content)] if parts else content, model=model
        )
    calls = [_tool_call(call) for call in content]
    return ChatMessageAssistant(content=parts or "", tool_calls=calls, model=model)


def _contents(content: str | Sequence[Any]) -> str | list[Content]:
    if isinstance(content, str):
        return content
    return [
        ContentText(text=part) if isinstance(part, str) else _image_of("image/png", part["data"])
        for part in content
    ]


def _tool_call(call: Mapping[str, Any]) -> ToolCall:
    try:
        arguments, problem = _ARGUMENTS.validate_json(call["arguments"]), None
    except ValidationError:
        arguments, problem = {"arguments": call["arguments"]}, "its arguments are no JSON object"
    return ToolCall(id=call["id"], function=call["name"], arguments=arguments, parse_error=problem)


def _tool_message(result: Mapping[str, Any]) -> ChatMessageTool:
    text: str = result["content"]
    error = ToolCallError(type="unknown", message=text) if result.get("is_error") else None
    return ChatMessageTool(
        content=text, tool_call_id=result["call_id"], function=result.get("name"), error=error
    )


def _as_text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _result_text(asked: RecordedEffect | None) -> str:
    """The result of a tool, as the code or the model gets it, in words."""
    match None if asked is None else asked.outcome:
        case None:
            return ""
        case {"content": list() as pieces} | {"result": list() as pieces}:
            return "\n".join(_piece(piece) for piece in pieces)
        case other:
            return _as_text(other)


def _piece(piece: JsonValue) -> str:
    match piece:
        case {"artifact": {"mime_type": str() as kind}}:
            return f"({kind})"
        case {"content": value} | {"value": value}:
            return _as_text(value)
        case _:
            return _as_text(piece)


def _block_result(event: BlockEnded, asked: RecordedEffect | None) -> ToolResult:
    """The output of code blocks, and what they have shown."""
    if asked is None or asked.kind != "block" or asked.outcome is None:
        return event.output
    result = load_result(asked.outcome)
    artifacts = result.artifacts if isinstance(result, SessionResult) else ()
    shown = [found for artifact in artifacts if (found := _shown(artifact)) is not None]
    # with pictures, the viewer takes text for Markdown
    return [ContentText(text=fenced(event.output)), *shown] if shown else event.output


def _shown(artifact: Artifact) -> ContentText | ContentImage | None:
    kind = bare_type(artifact.mime_type)
    if kind.startswith("image/"):
        return _image_of(kind, base64.b64encode(artifact.data).decode())
    if kind.startswith("text/") or kind.endswith(("json", "xml")):
        return ContentText(text=fenced(artifact.data.decode(errors="replace")))
    return None


def _process_output(asked: RecordedEffect | None) -> str:
    """Return the recorded output of a process."""
    if asked is None or asked.outcome is None:
        return ""
    try:
        outcome = outcome_of(asked.outcome)
    except JournalError as error:
        return f"({error})"
    return (outcome.stdout + outcome.stderr).decode(errors="replace")


_PROCESS = "run_process"
"""The name of processes, as a tool."""
_REQUEST = "send_request"
"""The name of requests to the network, as a tool."""
_CODE = "execute_code"
"""The name of blocks of code, as a tool."""
_UNFINISHED = "it had not ended when the run did"
_KEPT_AS_THEY_ARE = (
    BudgetSpent,
    Decision,
    Opened,
    OtherEffectBegan,
    OtherEffectEnded,
    OtherEvent,
    RequestDenied,
    SandboxLost,
)
_PROBLEMS: Mapping[CallOutcome, Any] = {
    CallOutcome.TIMED_OUT: "timeout",
    CallOutcome.DENIED: "approval",
    CallOutcome.REFUSED: "parsing",
    CallOutcome.CANCELLED: "cancelled",
}


_Began = ModelCallBegan | BlockBegan | ProcessBegan | RequestBegan | ToolCallBegan | QuestionAsked
_Ended = ModelCallEnded | BlockEnded | ProcessEnded | RequestEnded | ToolCallEnded | QuestionAnswered


def _span_of(event: RunBegan | TurnBegan | AttemptBegan | BlocksRepeating, run: str) -> tuple[str, str]:
    """The name and the kind of a span."""
    match event:
        case RunBegan():
            return run, "run"
        case TurnBegan():
            return event.agent, "agent"
        case AttemptBegan():
            return f"attempt {event.attempt}", "attempt"
        case BlocksRepeating():
            return "code runs again, to restore its variables", "repetition"


class Transcript:
    """A listener that makes the transcript of a recorded run, which may still be at work.

    Args:
        name: What runs.
        began: When the run began, in seconds since the epoch.
        effects: All its effects.

    Attributes:
        events: The transcript, in the order in which things began.
        usage: The tokens by model; answers from a cache cost none.
    """

    def __init__(self, name: str, began: float, effects: Iterable[RecordedEffect]) -> None:
        self.events: list[InspectEvent] = []
        self.usage: dict[str, ModelUsage] = {}
        self._name = name
        self._began = began
        self._asked = {effect.n: effect for effect in effects}
        self._spans: dict[int, str] = {}
        """The ids of the spans that are open, by their numbers."""
        self._calls: dict[int, tuple[ModelEvent | ToolEvent | InputEvent, _Began]] = {}

    def __call__(self, event: Event) -> None:
        match event:
            case RunBegan() | TurnBegan() | AttemptBegan() | BlocksRepeating():
                self._begin(event, event.span, *_span_of(event, self._name))
            case RunEnded() | TurnEnded() | AttemptEnded() | BlocksRepeated():
                self._end(event, event.span)
            case _ if isinstance(event, _Began):
                self._begin_call(event)
            case _ if isinstance(event, _Ended):
                self._end_call(event)
            case Approval():
                self._approval(event)
            case Judged():
                said = "\n".join([*event.problems, *filter(None, [event.next_step])])
                score = Score(
                    value=CORRECT if event.accepted else INCORRECT,
                    answer=event.answer or None,
                    explanation=said or None,
                )
                place = self._place(event)
                self.events.append(ScoreEvent(score=score, intermediate=True, scorer=event.agent, **place))
            case _ if isinstance(event, _KEPT_AS_THEY_ARE):
                data = {key: value for key, value in dump(event).items() if key not in ("at", "parent")}
                self.events.append(InfoEvent(source=event.type, data=data, **self._place(event)))
            case _:
                pass

    def close(self) -> None:
        """Mark what has not ended, and end what is open."""
        for call, began in self._calls.values():
            _fill(call, self._asked.get(began.span))
            if isinstance(call, ModelEvent):
                call.error = _UNFINISHED
            elif isinstance(call, ToolEvent):
                call.error = ToolCallError("unknown", _UNFINISHED)
        self._calls.clear()
        for identity in reversed(self._spans.values()):
            self.events.append(SpanEndEvent(id=identity, span_id=identity))
        self._spans.clear()

    def _place(self, event: Event) -> dict[str, Any]:
        """When and where an event is."""
        span = self._spans.get(event.parent or 0)
        # the events of the opening came before
        since = max(0.0, event.at - self._began)
        return {"timestamp": _time(event.at), "working_start": since, "span_id": span}

    def _begin(self, event: Event, number: int, name: str, kind: str) -> None:
        place = self._place(event)
        identity = str(number)
        self._spans[number] = identity
        place["span_id"], parent = identity, place["span_id"]
        self.events.append(SpanBeginEvent(id=identity, parent_id=parent, type=kind, name=name, **place))

    def _end(self, event: Event, number: int) -> None:
        if (identity := self._spans.pop(number, None)) is not None:
            place = self._place(event)
            place["span_id"] = identity
            self.events.append(SpanEndEvent(id=identity, **place))

    def _begin_call(self, event: _Began) -> None:
        match event:
            case ModelCallBegan():
                self.usage.setdefault(event.model, ModelUsage())
                call = ModelEvent(
                    model=event.model,
                    role=event.agent or None,
                    input=[],
                    tools=[],
                    tool_choice="auto",
                    config=GenerateConfig(),
                    output=ModelOutput(model=event.model),
                    **self._place(event),
                )
            case BlockBegan():
                self._begin(event, event.span, _CODE, "tool")
                blocks: list[JsonValue] = [
                    {"language": block.language, "code": block.code} for block in event.blocks
                ]
                arguments = blocks[0] if len(blocks) == 1 else {"blocks": blocks}
                call = self._tool_event(event, _CODE, cast("dict[str, JsonValue]", arguments))
                call.span_id = self._spans[event.span]
                parts = [fenced(block.code, block.language) for block in event.blocks]
                call.view = ToolCallContent(title=_CODE, format="markdown", content="\n\n".join(parts))
            case ProcessBegan():
                given: dict[str, JsonValue] = {"argv": [*event.argv], "cwd": event.cwd}
                call = self._tool_event(event, _PROCESS, given)
            case RequestBegan():
                given = {"method": event.method, "url": event.url}
                call = self._tool_event(event, _REQUEST, given)
            case ToolCallBegan():
                call = self._tool_event(event, event.name, {"arguments": event.arguments})
            case QuestionAsked():
                call = InputEvent(input="", input_ansi="", message=event.text, **self._place(event))
        self._calls[event.span] = call, event
        self.events.append(call)

    def _tool_event(
        self,
        event: BlockBegan | ProcessBegan | RequestBegan | ToolCallBegan,
        function: str,
        arguments: dict[str, JsonValue],
    ) -> ToolEvent:
        return ToolEvent(
            id=f"call-{len(self.events)}",
            function=function,
            arguments=arguments,
            metadata={"agent": event.agent},
            **self._place(event),
        )

    def _end_call(self, event: _Ended) -> None:
        call, began = self._calls.pop(event.span, (None, None))
        if began is None:
            return
        asked = self._asked.get(event.span)
        _fill(call, asked)
        match event, call:
            case ModelCallEnded(), ModelEvent():
                self._answered(call, asked, event)
            case BlockEnded(), ToolEvent():
                _end_block(call, event, asked)
            case ProcessEnded(), ToolEvent():
                _end_process(call, event, asked)
            case RequestEnded(), ToolEvent():
                call.result = fenced(event.told)
                _note(
                    call,
                    event.error,
                    agent=event.agent,
                    status=event.status,
                    sent=event.sent,
                    received=event.received,
                )
            case ToolCallEnded(), ToolEvent():
                _end_tool_call(call, event, asked)
            case QuestionAnswered(), InputEvent():
                call.input = call.input_ansi = event.text
            case _:
                return
        if isinstance(call, ModelEvent | ToolEvent):
            call.completed = _time(event.at)
            call.working_time = (call.completed - call.timestamp).total_seconds()
        if isinstance(event, BlockEnded):
            self._end(event, event.span)

    def _answered(self, call: ModelEvent, asked: RecordedEffect | None, event: ModelCallEnded) -> None:
        call.error = event.error
        call.cache = "read" if event.cached else None
        if asked is not None and asked.outcome is not None:
            call.output = _output_of(event.model, cast("dict[str, Any]", asked.outcome))
        if isinstance(spent := event.usage, RequestUsage) and not event.cached:
            self.usage[event.model] += _usage_of(spent.prompt_tokens, spent.completion_tokens)

    def _approval(self, event: Approval) -> None:
        decided = ToolCall(id=f"approval-{len(self.events)}", function=event.name, arguments={})
        self.events.append(
            ApprovalEvent(
                message=f"{event.agent}: {event.what}",
                call=decided,
                approver=event.by,
                decision="approve" if event.allowed else "reject",
                explanation=event.reason or None,
                **self._place(event),
            )
        )


def _end_block(call: ToolEvent, event: BlockEnded, asked: RecordedEffect | None) -> None:
    call.result = _block_result(event, asked)
    artifacts = [f"{one.mime_type}, {size_of(one.size)}, {one.sha256}" for one in event.artifacts]
    _note(
        call,
        event.error,
        agent=event.agent,
        exit_code=event.exit_code,
        outcome=None if event.outcome is None else event.outcome.value,
        limit=event.limit,
        state_lost=event.state_lost or None,
        artifacts=artifacts or None,
    )


def _end_tool_call(call: ToolEvent, event: ToolCallEnded, asked: RecordedEffect | None) -> None:
    call.result = _result_text(asked)
    if event.outcome is not CallOutcome.OK:
        call.error = ToolCallError(_PROBLEMS.get(event.outcome, "unknown"), event.error)


def _end_process(call: ToolEvent, event: ProcessEnded, asked: RecordedEffect | None) -> None:
    call.result = _process_output(asked)
    _note(call, event.error, agent=event.agent, exit_code=event.returncode, limit=event.limit)


def _note(call: ToolEvent, error: str | None, **known: object) -> None:
    call.metadata = {key: value for key, value in known.items() if value is not None}
    if error is not None:
        call.error = ToolCallError("unknown", error)


def _fill(call: object, asked: RecordedEffect | None) -> None:
    """Add the request to a call whose events do not have all of it."""
    match call, None if asked is None else asked.request:
        case ModelEvent(), {"messages": list() as messages} as request:
            given = cast("list[dict[str, Any]]", messages)
            call.input = [one for message in given for one in _messages(message)]
            tools = request.get("tools")
            for tool in tools if isinstance(tools, list) else ():
                # Inspect does not know every schema
                with suppress(ValidationError):
                    call.tools.append(ToolInfo.model_validate(tool))
        case ToolEvent(), {"arguments": dict() as arguments}:
            call.arguments = arguments
        case _:
            pass


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
