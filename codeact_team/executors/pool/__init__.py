"""Sandboxes that are started ahead, and handed out to executors that start."""

from codeact_team.executors.pool.pool import SandboxPool

__all__ = ["SandboxPool"]
