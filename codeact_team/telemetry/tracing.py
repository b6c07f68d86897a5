"""A listener that makes a span of each run, turn, model call, block, call of a tool and question to a person."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from autogen_core.models import RequestUsage
from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from pydantic import JsonValue

from codeact_team.core.effects import Effect, Event, Perform
from codeact_team.core.events import (
    Approval,
    AttemptBegan,
    AttemptEnded,
    BlockBegan,
    BlockEnded,
    Judged,
    ModelCallBegan,
    ModelCallEnded,
    QuestionAnswered,
    QuestionAsked,
    RunBegan,
    RunEnded,
    ToolCallBegan,
    ToolCallEnded,
    TurnBegan,
    TurnEnded,
)
from codeact_team.core.execution import CallOutcome, Outcome
from codeact_team.telemetry import conventions as names
from codeact_team.telemetry.conventions import Attributes, as_text

logger = logging.getLogger(__name__)

_NAME = "codeact_team"
_CODE = "execute_code"
"""What the conventions get as the tool that runs blocks of code."""
_RECORD = "codeact_team.run"
"""The id of the run that is recorded, by which other commands know it."""
_SPAN = "codeact_team.span"
"""The number by which events and the journal know what a span is of."""
_NUMBER = context.create_key("codeact_team-span")
_FAILED = "exit_code"
"""The error of code that ran to its end and told of a failure."""


@dataclass
class _OpenSpan:
    span: Span
    inside: Context
    """What is current within it."""
    around: Context
    began: float
    is_performed: bool
    """Whether anything was really done: not so where an interceptor answers instead, as from a journal, or refuses."""


class Tracing:
    """A listener of one dispatcher. Within each span, it is the current one, so that AutoGen's spans are its children too.

    Args:
        workflow: The name of what runs.
        clean: Takes credentials out of contents; ``None`` for spans without contents.
    """

    def __init__(self, workflow: str, clean: Callable[[str], str] | None) -> None:
        self._tracer = trace.get_tracer(_NAME, metadata.version("codeact-team"))
        self._workflow = workflow
        self._clean = clean
        self._open: dict[int, _OpenSpan] = {}

    def __call__(self, event: Event) -> None:
        match event:
            case RunBegan() | TurnBegan() | AttemptBegan() | QuestionAsked():
                self._begin_frame(event)
            case ModelCallBegan() | BlockBegan() | ToolCallBegan():
                self._begin_call(event)
            case RunEnded() | TurnEnded() | AttemptEnded() | QuestionAnswered():
                self._end_frame(event)
            case ModelCallEnded() | BlockEnded() | ToolCallEnded():
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
        self._note_contents(span, lambda: names.asked(effect.request()))
        outcome = await do()
        self._note_contents(span, lambda: names.answered(effect.request(), effect.dump(outcome)))
        return outcome

    def _note_contents(self, span: Span, contents: Callable[[], dict[str, JsonValue]]) -> None:
        try:
            self._set(span, contents())
        except Exception as error:
            # no run ends because of what is told of it
            logger.warning("a span lacks contents: %r", error)

    def _begin_frame(self, event: RunBegan | TurnBegan | AttemptBegan | QuestionAsked) -> None:
        match event:
            case RunBegan():
                name, attributes = _named("invoke_workflow", names.WORKFLOW, self._workflow)
                if event.record is not None:
                    attributes = {**attributes, _RECORD: Path(event.record).name}
                self._begin(event, event.span, name, attributes)
                given = [names.text_message("user", event.task)]
                self._set(self._open[event.span].span, {names.INPUT_MESSAGES: given})
            case TurnBegan():
                self._begin(event, event.span, *_named("invoke_agent", names.AGENT, event.agent))
            case AttemptBegan():
                number = {"codeact_team.attempt": event.attempt}
                self._begin(event, event.span, "attempt", {names.AGENT: event.agent, **number})
            case QuestionAsked():
                self._begin(event, event.span, "ask_person", {names.AGENT: event.agent})
                self._set(self._open[event.span].span, {"codeact_team.question": event.text})

    def _begin_call(self, event: ModelCallBegan | BlockBegan | ToolCallBegan) -> None:
        by = {names.AGENT: event.agent} if event.agent else {}
        match event:
            case ModelCallBegan():
                name, attributes = _named("chat", names.MODEL, event.model)
                attributes = {**attributes, names.PROVIDER: names.provider_of(event.client), **by}
                self._begin(event, event.span, name, attributes, SpanKind.CLIENT)
            case BlockBegan():
                name, attributes = _named("execute_tool", names.TOOL, _CODE)
                self._begin(event, event.span, name, {**attributes, **by})
                blocks = cast("JsonValue", [asdict(block) for block in event.blocks])
                self._set(self._open[event.span].span, {names.ARGUMENTS: {"blocks": blocks}})
            case ToolCallBegan():
                name, attributes = _named("execute_tool", names.TOOL, event.name)
                self._begin(event, event.span, name, {**attributes, names.TOOL_TYPE: "function", **by})

    def _end_frame(self, event: RunEnded | TurnEnded | AttemptEnded | QuestionAnswered) -> None:
        if isinstance(event, QuestionAnswered) and event.text:
            self._set(self._span(event.span), {"codeact_team.answer": event.text})
        self._end(event, event.span, error=event.error)

    def _end_call(self, event: ModelCallEnded | BlockEnded | ToolCallEnded) -> None:
        span = self._span(event.span)
        match event:
            case ModelCallEnded():
                if event.finish_reason is not None:
                    span.set_attribute(names.FINISH_REASONS, [names.finish_reason_of(event.finish_reason)])
                if event.first_piece is not None:
                    span.set_attribute(names.STREAMED, True)
                    span.set_attribute(names.FIRST_CHUNK, event.first_piece)
                if isinstance(usage := event.usage, RequestUsage) and not event.cached:
                    span.set_attribute(names.INPUT_TOKENS, usage.prompt_tokens)
                    span.set_attribute(names.OUTPUT_TOKENS, usage.completion_tokens)
                self._end(event, event.span, error=event.error)
            case BlockEnded():
                if event.exit_code is not None:
                    span.set_attribute(names.EXIT_CODE, event.exit_code)
                    result: JsonValue = {"exit_code": event.exit_code, "output": event.output}
                    self._set(span, {names.RESULT: result})
                kind = _FAILED if event.exit_code else None
                if event.outcome not in (None, Outcome.COMPLETED):
                    kind = event.outcome.value
                self._end(event, event.span, kind, error=event.error)
            case ToolCallEnded():
                kind = None if event.outcome is CallOutcome.OK else event.outcome.value
                self._end(event, event.span, kind, error=event.error)

    def _note(self, event: Approval | Judged) -> None:
        found = self._open.get(event.parent or 0)
        if found is None:
            return
        match event:
            case Approval():
                decision = "allowed" if event.allowed else "denied"
                told = {"what": event.what, "decision": decision, "by": event.by}
                attributes: dict[str, Any] = {
                    f"codeact_team.tools.approvals.{key}": told[key] for key in told
                }
                found.span.add_event("codeact_team.approval", attributes, _nanoseconds(event.at))
            case Judged():
                label = "accepted" if event.accepted else "not accepted"
                attributes = {
                    "gen_ai.evaluation.name": "review",
                    "gen_ai.evaluation.score.label": label,
                    "gen_ai.evaluation.score.value": float(event.accepted),
                }
                if self._clean is not None and event.problems:
                    attributes["gen_ai.evaluation.explanation"] = self._clean("\n".join(event.problems))
                found.span.add_event(names.EVALUATION, attributes, _nanoseconds(event.at))
            case _:
                pass

    def _begin(
        self,
        event: Event,
        number: int,
        name: str,
        attributes: Attributes,
        kind: SpanKind = SpanKind.INTERNAL,
    ) -> None:
        around = context.get_current()
        within = around
        if event.parent in self._open and _current_number() != event.parent:
            # a task that was not started by what it works for; else a span of AutoGen's may be in between
            within = self._open[event.parent].inside
        attributes = {**attributes, _SPAN: number}
        span = self._tracer.start_span(name, within, kind, attributes, start_time=_nanoseconds(event.at))
        inside = context.set_value(_NUMBER, number, trace.set_span_in_context(span, within))
        is_frame = isinstance(event, RunBegan | TurnBegan | AttemptBegan)
        self._open[number] = _OpenSpan(span, inside, around, event.at, is_performed=is_frame)
        context.attach(inside)

    def _end(self, event: Event, number: int, kind: str | None = None, *, error: str | None) -> None:
        found = self._open.pop(number, None)
        if found is None:
            return
        if _current_number() == number:
            # whatever task this is; the token of `attach` would be good in one only
            context.attach(found.around)
        if not found.is_performed:
            # a span that does not end is not told: nothing has happened anew
            return
        if kind is None and error:
            kind = names.error_type_of(error)
        if kind is not None:
            found.span.set_attribute(names.ERROR, kind)
            # the words of an error may quote anything
            said = self._clean(error) if error and self._clean is not None else None
            found.span.set_status(Status(StatusCode.ERROR, said))
        found.span.end(_nanoseconds(event.at))

    def _span(self, number: int) -> Span:
        found = self._open.get(number)
        return trace.INVALID_SPAN if found is None else found.span

    def _set(self, span: Span, contents: dict[str, JsonValue]) -> None:
        if self._clean is None or not span.is_recording():
            return
        for name, value in contents.items():
            text = self._clean(value) if isinstance(value, str) else as_text(value, self._clean)
            span.set_attribute(name, text)


def _current_number() -> int:
    """The number of our span that is current; 0 for none."""
    return cast("int", context.get_value(_NUMBER) or 0)


def _named(operation: str, key: str, name: str) -> tuple[str, Attributes]:
    """The name of a span, and what it begins with."""
    if not name:
        return operation, {names.OPERATION: operation}
    return f"{operation} {name}", {names.OPERATION: operation, key: name}


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
