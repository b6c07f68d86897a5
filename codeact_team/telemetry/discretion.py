"""Keeps what models and people say out of AutoGen's own spans, which else hold every message and every error's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Status
from opentelemetry.util.types import AttributeValue

_AUTOGEN = "autogen"
_CONTENTS = ("message", "exception.message", "exception.stacktrace")


class DiscreetExporter(SpanExporter):
    """Hands spans on to another exporter, those of AutoGen without contents, which ours hold where they are wanted."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._exporter.export([_discreet(span) for span in spans])

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def _discreet(span: ReadableSpan) -> ReadableSpan:
    scope = span.instrumentation_scope
    if scope is None or not scope.name.startswith(_AUTOGEN):
        return span
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=_without_contents(span.attributes),
        events=[
            Event(event.name, _without_contents(event.attributes), event.timestamp) for event in span.events
        ],
        links=span.links,
        kind=span.kind,
        status=Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=scope,
    )


def _without_contents(attributes: Mapping[str, AttributeValue] | None) -> dict[str, AttributeValue]:
    return {name: value for name, value in (attributes or {}).items() if name not in _CONTENTS}
