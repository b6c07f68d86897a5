"""Where pip installs what the code asks for."""

from __future__ import annotations

import os
import site
import sys
from contextlib import suppress


def prepare_user_site() -> None:
    """Let the code import what pip will install for its user. Python itself looks at its start whether that is there."""
    if not site.ENABLE_USER_SITE:
        return
    place = site.getusersitepackages()
    # a directory that is not there when the first module is looked for counts as missing for ever
    with suppress(OSError):
        os.makedirs(place, exist_ok=True)
    if place not in sys.path:
        shared = (number for number, path in enumerate(sys.path) if path.endswith("-packages"))
        sys.path.insert(next(shared, len(sys.path)), place)
