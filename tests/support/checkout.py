"""What is to be committed, without the rest of the directory that it stands in."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

CHECKOUT = Path(__file__).parents[2]


def copy_checkout(place: Path) -> Path:
    """Copy all files that are committed, or would be by ``git add``, to a directory, and return it."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listed, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (CHECKOUT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(CHECKOUT / name, place / name)
    return place
