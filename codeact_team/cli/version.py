"""What is installed."""

from __future__ import annotations

import platform
from importlib import metadata


def version() -> str:
    """The versions that a report of a problem should name."""
    return f"codeact-team {_of('codeact-team')} (AutoGen {_of('autogen-agentchat')}, Python {platform.python_version()})"


def _of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"
