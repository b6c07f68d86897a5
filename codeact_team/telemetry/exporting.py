"""Sends the spans of a command to where the standard ``OTEL_*`` variables say."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, cast

from codeact_team.core.shipped import how_to_install
from codeact_team.errors import SettingError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
    from opentelemetry.util.types import AttributeValue

_AUTOGEN = "autogen"
_CONTENTS = ("message", "exception.message", "exception.stacktrace")
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_PATIENCE = 5.0
"""Seconds that the last spans may take to be sent; a collector on another continent takes one."""
_PATIENCE_AFTER_FAILURE = 0.5
"""Seconds, once sending has failed: the exporter would try again for ten."""
_LONGEST_REASON = 300


def is_wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether the standard variables ask for spans: they name where to send them, or an exporter."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if exporters := environ.get("OTEL_TRACES_EXPORTER", "").strip():
        return exporters.lower() != "none"
    return any(environ.get(name) for name in _ENDPOINTS)


@contextmanager
def exporting(warn: Callable[[str], None], clean: Callable[[str], str]) -> Generator[None]:
    """Within it, the process has a tracer provider, if the variables ask for one; at the end the last spans are sent.

    A provider that exists already is left alone, and so are its spans.

    Args:
        warn: Is called with a problem, once, in words.
        clean: Takes credentials out of a text.
    """
    provider: TracerProvider | None = None
    if is_wanted():
        try:
            provider = _set_provider()
        except ImportError:
            warn(f"the environment asks for traces (OTEL_…), which need a package: {how_to_install('otel')}")
        except Exception as error:
            warn(f"there will be no traces: {clean(_short(str(error)))}")
    if provider is None:
        yield
        return
    failures, theirs = _Failures(), logging.getLogger("opentelemetry")
    theirs.addHandler(failures)
    try:
        yield
    finally:
        if (reason := _send_the_rest(provider, failures)) is not None:
            warn(f"not all traces could be sent: {clean(_short(reason))}")
        theirs.removeHandler(failures)


def _set_provider() -> TracerProvider | None:
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.trace import ProxyTracerProvider, get_tracer_provider, set_tracer_provider

    if not isinstance(get_tracer_provider(), ProxyTracerProvider):
        return None
    named = {"service.name": "codeact-team", **OTELResourceDetector().detect().attributes}
    # at the end it would wait too long
    provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
    for name in _exporter_names():
        found = entry_points(group="opentelemetry_traces_exporter", name=name)
        if not found:
            raise SettingError(
                f"no exporter {name!r} is installed (OTEL_TRACES_EXPORTER, OTEL_EXPORTER_OTLP_PROTOCOL); the one for otlp "
                f"over http/protobuf is installed by {how_to_install('otel')}"
            )
        exporter = next(iter(found)).load()()
        provider.add_span_processor(BatchSpanProcessor(cast("SpanExporter", _WithoutContents(exporter))))
    set_tracer_provider(provider)
    return provider


class _WithoutContents:
    """Wraps an exporter, and strips the texts of messages and errors from the spans of AutoGen.

    Our own spans have these where they are wanted.
    """

    def __init__(self, exporter: SpanExporter) -> None:
        self.shutdown = exporter.shutdown
        self.force_flush = exporter.force_flush
        self._exporter = exporter

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self._exporter.export([_without_contents(span) for span in spans])


def _without_contents(span: ReadableSpan) -> ReadableSpan:
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.trace import Status

    scope = span.instrumentation_scope
    if scope is None or not scope.name.startswith(_AUTOGEN):
        return span
    return ReadableSpan(
        name=span.name,
        context=span.context,
        parent=span.parent,
        resource=span.resource,
        attributes=_plain_attributes(span.attributes),
        events=[Event(each.name, _plain_attributes(each.attributes), each.timestamp) for each in span.events],
        links=span.links,
        kind=span.kind,
        status=Status(span.status.status_code),
        start_time=span.start_time,
        end_time=span.end_time,
        instrumentation_scope=scope,
    )


def _plain_attributes(attributes: Mapping[str, AttributeValue] | None) -> dict[str, AttributeValue]:
    return {name: value for name, value in (attributes or {}).items() if name not in _CONTENTS}


def _exporter_names() -> Sequence[str]:
    given = os.environ.get("OTEL_TRACES_EXPORTER", "").strip() or "otlp"
    names = [name.strip() for name in given.split(",")]
    protocol = next(filter(None, map(os.environ.get, _PROTOCOLS)), "http/protobuf")
    otlp = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    return [otlp if name == "otlp" else name for name in names if name not in ("", "none")]


class _Failures(logging.Handler):
    """Collects the failures of exporters and their queue, which only log them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last: str | None = None
        self.ended = SimpleQueue[bool]()
        """Gets false for each failure, and true when all is sent."""

    def emit(self, record: logging.LogRecord) -> None:
        self.last = record.getMessage()
        self.ended.put(False)


def _send_the_rest(provider: TracerProvider, failures: _Failures) -> str | None:
    """Send the last spans; returns why not all have arrived, if so. An interrupt ends the wait."""

    def work() -> None:
        provider.shutdown()
        failures.ended.put(True)

    sender = threading.Thread(target=work, daemon=True, name="codeact-team last spans")
    end = time.monotonic() + _PATIENCE
    try:
        sender.start()
        while not failures.ended.get(timeout=max(0, end - time.monotonic())):
            end = min(end, time.monotonic() + _PATIENCE_AFTER_FAILURE)
    except Empty:
        return failures.last or f"their receiver did not accept them within {_PATIENCE:g} s"
    except KeyboardInterrupt:
        return failures.last or "interrupted"
    return failures.last


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_REASON else f"{line[:_LONGEST_REASON]}…"
