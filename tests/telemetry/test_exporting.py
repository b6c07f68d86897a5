"""When the command sends spans, and what is in its way."""

from __future__ import annotations

import sys
from collections.abc import Mapping

import pytest
from opentelemetry import trace
from tracing_support import tracing

from codeact_team.telemetry.exporting import exporting, is_wanted

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"


@pytest.mark.parametrize(
    ("environ", "wanted"),
    [
        ({}, False),
        ({ENDPOINT: ""}, False),
        ({ENDPOINT: "http://127.0.0.1:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "console"}, True),
        ({ENDPOINT: "http://127.0.0.1:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({ENDPOINT: "http://127.0.0.1:4318", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_spans_are_sent_where_the_standard_variables_ask_for_them(environ: Mapping[str, str], wanted: bool):
    assert is_wanted(environ) is wanted


def test_what_is_missing_is_named_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    warnings: list[str] = []
    with exporting(warnings.append, str):
        assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    (warning,) = warnings
    assert warning.endswith("`pip install '.[otel]'` in a checkout")


def test_a_provider_that_is_there_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(ENDPOINT, "http://127.0.0.1:9")
    with tracing(monkeypatch) as spans:
        with exporting(pytest.fail, str):
            assert trace.get_tracer_provider() is spans.provider
        with spans.provider.get_tracer("later").start_as_current_span("still open"):
            pass
        assert [span.name for span in spans.all] == ["still open"]
