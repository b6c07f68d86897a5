"""What happens in a run, as spans of OpenTelemetry."""
