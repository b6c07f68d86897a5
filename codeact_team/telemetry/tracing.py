"""A listener that makes a span of each run, turn, model call, block, process, request, call of a tool and question to a person."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from autogen_core.models import RequestUsage
from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from pydantic import JsonValue

from codeact_team.core.effects import Effect, Event, OtherEffectBegan, OtherEffectEnded, Perform
from codeact_team.core.events import (
    Approval,
    AttemptBegan,
    AttemptEnded,
    BlockBegan,
    BlockEnded,
    Judged,
    ModelCallBegan,
    ModelCallEnded,
    ProcessBegan,
    ProcessEnded,
    QuestionAnswered,
    QuestionAsked,
    RequestBegan,
    RequestEnded,
    RunBegan,
    RunEnded,
    ToolCallBegan,
    ToolCallEnded,
    TurnBegan,
    TurnEnded,
)
from codeact_team.core.execution import CallOutcome, Outcome
from codeact_team.telemetry import conventions as names
from codeact_team.telemetry.conventions import as_text

logger = logging.getLogger(__name__)

_EffectBegan = (
    QuestionAsked
    | ModelCallBegan
    | BlockBegan
    | ProcessBegan
    | RequestBegan
    | ToolCallBegan
    | OtherEffectBegan
)
_Began = RunBegan | TurnBegan | AttemptBegan | _EffectBegan
_CallEnded = ModelCallEnded | BlockEnded | ProcessEnded | RequestEnded | ToolCallEnded
_Ended = RunEnded | TurnEnded | AttemptEnded | QuestionAnswered | OtherEffectEnded | _CallEnded

_NAME = "codeact_team"
_CODE = "execute_code"
"""The name of the tool that runs blocks of code."""
_RECORD = "codeact_team.run"
"""The id of a recorded run, by which other commands know it."""
_SPAN = "codeact_team.span"
"""The number of the span in events and in the journal."""
_NUMBER = context.create_key("codeact_team-span")
_FAILED = "exit_code"
"""The error type of code that ended with an exit code other than 0."""


@dataclass
class _OpenSpan:
    span: Span
    inside: Context
    """The context that is current within it."""
    around: Context
    is_performed: bool
    """Whether anything was really done: not so where an interceptor answers instead, as from a journal, or refuses."""


@dataclass
class _Begin:
    name: str
    attributes: dict[str, Any]
    contents: dict[str, JsonValue] = field(default_factory=dict[str, JsonValue])
    kind: SpanKind = SpanKind.INTERNAL


class Tracing:
    """A listener of one dispatcher. Within each span, it is the current one, so that AutoGen's spans are its children too.

    Args:
        workflow: The name of the run's team or program.
        clean: Takes credentials out of contents; ``None`` for spans without contents.
    """

    def __init__(self, workflow: str, clean: Callable[[str], str] | None) -> None:
        self._tracer = trace.get_tracer(_NAME, metadata.version("codeact-team"))
        self._workflow = workflow
        self._clean = clean
        self._open: dict[int, _OpenSpan] = {}

    def __call__(self, event: Event) -> None:
        match event:
            case RunBegan() | TurnBegan() | AttemptBegan():
                self._begin(event, _frame(event, self._workflow), is_performed=True)
            case _ if isinstance(event, _EffectBegan):
                self._begin(event, _effect(event), is_performed=False)
            case RunEnded() | TurnEnded() | AttemptEnded() | OtherEffectEnded():
                self._end(event, event.error)
            case QuestionAnswered():
                if event.text and (found := self._open.get(event.span)) is not None:
                    self._set(found.span, {"codeact_team.answer": event.text})
                self._end(event, event.error)
            case _ if isinstance(event, _CallEnded):
                self._end_call(event)
            case Approval() | Judged():
                self._note(event)
            case _:
                pass

    async def intercept(self, effect: Effect[Any], do: Perform) -> Any:
        """An interceptor, the innermost: notes that an effect is really performed, and where that is wanted its contents."""
        if (found := self._open.get(_current_number())) is not None:
            found.is_performed = True
        if self._clean is None:
            return await do()
        span = trace.get_current_span()
        self._set_safely(span, lambda: names.input_of(effect.request()))
        outcome = await do()
        self._set_safely(span, lambda: names.output_of(effect.request(), effect.dump(outcome)))
        return outcome

    def _set_safely(self, span: Span, contents: Callable[[], dict[str, JsonValue]]) -> None:
        try:
            self._set(span, contents())
        except Exception as error:
            # a trace must not end a run
            logger.warning("a span lacks contents: %r", error)

    def _begin(self, event: _Began, begin: _Begin, *, is_performed: bool) -> None:
        within = around = context.get_current()
        if event.parent in self._open and _current_number() != event.parent:
            # a task that was not started by what it works for; else a span of AutoGen's may be in between
            within = self._open[event.parent].inside
        attributes = {**begin.attributes, _SPAN: event.span}
        start = _nanoseconds(event.at)
        span = self._tracer.start_span(begin.name, within, begin.kind, attributes, start_time=start)
        inside = context.set_value(_NUMBER, event.span, trace.set_span_in_context(span, within))
        self._open[event.span] = _OpenSpan(span, inside, around, is_performed)
        context.attach(inside)
        self._set(span, begin.contents)

    def _end_call(self, event: _CallEnded) -> None:
        found = self._open.get(event.span)
        span, kind = trace.INVALID_SPAN if found is None else found.span, None
        match event:
            case ModelCallEnded():
                _answer(span, event)
            case BlockEnded():
                if event.exit_code is not None:
                    span.set_attribute(names.EXIT_CODE, event.exit_code)
                    self._set(span, {names.RESULT: {"exit_code": event.exit_code, "output": event.output}})
                kind = _FAILED if event.exit_code else None
                if event.outcome not in (None, Outcome.COMPLETED):
                    kind = event.outcome.value
            case ProcessEnded():
                if event.returncode is not None:
                    span.set_attribute(names.EXIT_CODE, event.returncode)
                kind = _FAILED if event.returncode and event.error is None else None
            case RequestEnded():
                kind = _received(span, event)
            case ToolCallEnded():
                kind = None if event.outcome is CallOutcome.OK else event.outcome.value
        self._end(event, event.error, kind)

    def _end(self, event: _Ended, error: str | None, kind: str | None = None) -> None:
        found = self._open.pop(event.span, None)
        if found is None:
            return
        if _current_number() == event.span:
            # in whatever task this runs; the token of `attach` would be good in one only
            context.attach(found.around)
        if not found.is_performed:
            # a span that does not end is not exported: nothing has happened anew
            return
        if kind is None and error:
            kind = names.error_type_of(error)
        if kind is not None:
            found.span.set_attribute(names.ERROR, kind)
            # the words of an error may quote anything
            text = self._clean(error) if error and self._clean is not None else None
            found.span.set_status(Status(StatusCode.ERROR, text))
        found.span.end(_nanoseconds(event.at))

    def _note(self, event: Approval | Judged) -> None:
        found = self._open.get(event.parent or 0)
        if found is None:
            return
        if isinstance(event, Approval):
            prefix = "codeact_team.tools.approvals"
            decision = "allowed" if event.allowed else "denied"
            attributes = {
                f"{prefix}.what": event.what,
                f"{prefix}.decision": decision,
                f"{prefix}.by": event.by,
            }
            found.span.add_event("codeact_team.approval", attributes, _nanoseconds(event.at))
            return
        evaluation = {
            "gen_ai.evaluation.name": "review",
            "gen_ai.evaluation.score.label": "accepted" if event.accepted else "not accepted",
            "gen_ai.evaluation.score.value": float(event.accepted),
        }
        if self._clean is not None and event.problems:
            evaluation["gen_ai.evaluation.explanation"] = self._clean("\n".join(event.problems))
        found.span.add_event(names.EVALUATION, evaluation, _nanoseconds(event.at))

    def _set(self, span: Span, contents: dict[str, JsonValue]) -> None:
        if self._clean is None or not span.is_recording():
            return
        for name, value in contents.items():
            text = self._clean(value) if isinstance(value, str) else as_text(value, self._clean)
            span.set_attribute(name, text)


def _frame(event: RunBegan | TurnBegan | AttemptBegan, workflow: str) -> _Begin:
    match event:
        case RunBegan():
            begin = _named("invoke_workflow", names.WORKFLOW, workflow)
            if event.record is not None:
                begin.attributes[_RECORD] = Path(event.record).name
            begin.contents[names.INPUT_MESSAGES] = [names.text_message("user", event.task)]
            return begin
        case TurnBegan():
            return _named("invoke_agent", names.AGENT, event.agent)
        case AttemptBegan():
            return _Begin("attempt", {names.AGENT: event.agent, "codeact_team.attempt": event.attempt})


def _effect(event: _EffectBegan) -> _Begin:
    match event:
        case QuestionAsked():
            return _Begin("ask_person", {names.AGENT: event.agent}, {"codeact_team.question": event.text})
        case ModelCallBegan():
            begin = _named("chat", names.MODEL, event.model)
            begin.kind = SpanKind.CLIENT
            begin.attributes[names.PROVIDER] = names.provider_of(event.client)
        case BlockBegan():
            begin = _named("execute_tool", names.TOOL, _CODE)
            blocks = cast("JsonValue", [asdict(block) for block in event.blocks])
            begin.contents[names.ARGUMENTS] = {"blocks": blocks}
        case ProcessBegan():
            # a program may quote anything
            begin = _Begin("run_process", {}, {names.PROCESS_ARGUMENTS: [*event.argv]})
        case RequestBegan():
            begin = _Begin(
                event.method, {names.METHOD: event.method, **names.where(event.url)}, kind=SpanKind.CLIENT
            )
        case ToolCallBegan():
            begin = _named("execute_tool", names.TOOL, event.name)
            begin.attributes[names.TOOL_TYPE] = "function"
        case OtherEffectBegan():
            begin = _Begin(event.kind, {}, {"codeact_team.request": event.request})
    if event.agent:
        begin.attributes[names.AGENT] = event.agent
    return begin


def _answer(span: Span, event: ModelCallEnded) -> None:
    """Set the attributes of a model's answer."""
    if event.finish_reason is not None:
        span.set_attribute(names.FINISH_REASONS, [names.finish_reason_of(event.finish_reason)])
    if event.first_piece is not None:
        span.set_attribute(names.STREAMED, True)
        span.set_attribute(names.FIRST_CHUNK, event.first_piece)
    if isinstance(usage := event.usage, RequestUsage) and not event.cached:
        span.set_attribute(names.INPUT_TOKENS, usage.prompt_tokens)
        span.set_attribute(names.OUTPUT_TOKENS, usage.completion_tokens)


def _received(span: Span, event: RequestEnded) -> str | None:
    """Set the attributes of an answer to a request. Returns the error that its status is."""
    span.set_attribute(names.REQUEST_SIZE, event.sent)
    span.set_attribute(names.RESPONSE_SIZE, event.received)
    if event.status is None:
        return None
    span.set_attribute(names.STATUS, event.status)
    return str(event.status) if event.status >= 400 else None


def _current_number() -> int:
    """The number of our span that is current; 0 for none."""
    return cast("int", context.get_value(_NUMBER) or 0)


def _named(operation: str, key: str, name: str) -> _Begin:
    if not name:
        return _Begin(operation, {names.OPERATION: operation})
    return _Begin(f"{operation} {name}", {names.OPERATION: operation, key: name})


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
