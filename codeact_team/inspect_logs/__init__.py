"""Recorded runs as logs for Inspect, which has a viewer for them. Needs ``inspect-ai``."""
