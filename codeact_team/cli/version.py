"""What ``--version`` prints: what a report of a problem should name."""

from __future__ import annotations

import json
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

_PACKAGE = "codeact-team"
_SHORT = 8
"""Digits of a commit."""


def version() -> str:
    """The versions of this package and of what it runs on, and the commit if this is no release."""
    where = (
        f"Python {platform.python_version()}, {platform.system()} {platform.release()} {platform.machine()}"
    )
    parts = [_origin(), f"AutoGen {_of('autogen-agentchat')}", where]
    return f"{_PACKAGE} {_of(_PACKAGE)} ({', '.join(filter(None, parts))})"


def _of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _origin() -> str | None:
    """The commit that is installed, as far as what pip has noted at the installation (PEP 610) tells it."""
    try:
        noted = metadata.distribution(_PACKAGE).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    origin: dict[str, Any] = json.loads(noted or "{}")
    address: str = origin.get("url", "")
    if "vcs_info" in origin:
        return f"commit {origin['vcs_info']['commit_id'][:_SHORT]}"
    if "dir_info" not in origin:
        return None
    checkout = Path(url2pathname(urlsplit(address).path))
    if (commit := _commit_of(checkout)) is None:
        return "from a directory"
    # of a copy, nobody knows whether the checkout has changed since
    return f"checkout {commit}" if origin["dir_info"].get("editable") else f"from a checkout, now {commit}"


def _commit_of(checkout: Path) -> str | None:
    if not (checkout / ".git").exists():
        return None
    command = ["git", "-C", str(checkout), "describe", "--always", f"--abbrev={_SHORT}", "--dirty"]
    try:
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
