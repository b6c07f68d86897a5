"""Spans of OpenTelemetry for the effects of a run."""
