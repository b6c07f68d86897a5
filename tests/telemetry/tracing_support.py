"""Spans as the SDK's in-memory exporter has them, with a tracer provider that is global for one test."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext

_ROUNDING = 1_000
"""Nanoseconds that a time in seconds may be off."""

NUMBER = "codeact_team.span"


class Spans:
    """The spans that have ended."""

    def __init__(self) -> None:
        self.provider = TracerProvider(shutdown_on_exit=False)
        self._exporter = InMemorySpanExporter()
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    @property
    def all(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    @property
    def ours(self) -> list[ReadableSpan]:
        """Those of this package, in the order in which they began."""
        ours = [span for span in self.all if scope_of(span) == "codeact_team"]
        return sorted(ours, key=lambda span: span.start_time or 0)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.ours if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def path(self, span: ReadableSpan | None, *, ours_only: bool = True) -> list[str]:
        """The names of a span and of all that it is in, the outermost first."""
        by_id = {context_of(one).span_id: one for one in self.all}
        names: list[str] = []
        while span is not None:
            if not ours_only or scope_of(span) == "codeact_team":
                names.append(span.name)
            parent = None if span.parent is None else by_id[span.parent.span_id]
            if parent is not None:
                assert context_of(parent).trace_id == context_of(span).trace_id
                assert begin_of(span) >= begin_of(parent) - _ROUNDING
            span = parent
        return names[::-1]


@contextmanager
def tracing(monkeypatch: pytest.MonkeyPatch) -> Generator[Spans]:
    """Within it, the process has a tracer provider. The real setter works once in a process only."""
    spans = Spans()
    with monkeypatch.context() as patch:
        patch.setattr("opentelemetry.trace._TRACER_PROVIDER", spans.provider)
        yield spans
    spans.provider.shutdown()


def context_of(span: ReadableSpan) -> SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


def scope_of(span: ReadableSpan) -> str:
    assert span.instrumentation_scope is not None
    return span.instrumentation_scope.name


def begin_of(span: ReadableSpan) -> int:
    assert span.start_time is not None
    return span.start_time


def end_of(span: ReadableSpan) -> int:
    assert span.end_time is not None
    return span.end_time


def told_of(span: ReadableSpan) -> dict[str, object]:
    """What a span has beside its number."""
    return {name: value for name, value in (span.attributes or {}).items() if name != NUMBER}
