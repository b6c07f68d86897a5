"""The Pythons of this machine."""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path


@cache
def python_of(version: str) -> str | None:
    """A Python of this version that starts; a name on the path may belong to a program that chooses another."""
    root = os.environ.get("PYENV_ROOT", str(Path.home() / ".pyenv"))
    installed = sorted(glob.glob(f"{root}/versions/{version}.*/bin/python"))
    for candidate in (sys.executable, shutil.which(f"python{version}"), *installed):
        if candidate is not None and _version(candidate) == version:
            return candidate
    return None


def _version(python: str) -> str:
    """Its version without the last number; empty if it does not start."""
    script = "import sys; print('%d.%d' % sys.version_info[:2])"
    return subprocess.run([python, "-c", script], capture_output=True, text=True, check=False).stdout.strip()
