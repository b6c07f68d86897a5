"""Keeps what models and people say out of AutoGen's own spans, which else hold every message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import Status
from opentelemetry.util.types import AttributeValue

from codeact_team.telemetry import Clean

_AUTOGEN = "autogen"
_CONTENTS = ("message", "exception.message", "exception.stacktrace")


class DiscreetExporter(SpanExporter):
    """Hands spans on to another exporter, those of AutoGen without contents, or at least without credentials.

    Args:
        exporter: The other one.
        clean: Takes credentials out of a text.
        with_contents: Whether contents are wanted.
    """

    def __init__(self, exporter: SpanExporter, clean: Clean, *, with_contents: bool) -> None:
        self._exporter = exporter
        self._clean = clean
        self._with_contents = with_contents

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._exporter.export([self._discreet(span) for span in spans])

    def shutdown(self) -> None:
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)

    def _discreet(self, span: ReadableSpan) -> ReadableSpan:
        scope = span.instrumentation_scope
        if scope is None or not scope.name.startswith(_AUTOGEN):
            return span
        return ReadableSpan(
            name=span.name,
            context=span.context,
            parent=span.parent,
            resource=span.resource,
            attributes=self._attributes(span.attributes),
            events=[
                Event(event.name, self._attributes(event.attributes), event.timestamp)
                for event in span.events
            ],
            links=span.links,
            kind=span.kind,
            status=Status(span.status.status_code, self._description(span.status.description)),
            start_time=span.start_time,
            end_time=span.end_time,
            instrumentation_scope=scope,
        )

    def _attributes(self, attributes: Mapping[str, AttributeValue] | None) -> dict[str, AttributeValue]:
        kept = attributes or {}
        if not self._with_contents:
            return {name: value for name, value in kept.items() if name not in _CONTENTS}
        return {name: self._clean(value) if isinstance(value, str) else value for name, value in kept.items()}

    def _description(self, text: str | None) -> str | None:
        return self._clean(text) if text is not None and self._with_contents else None
