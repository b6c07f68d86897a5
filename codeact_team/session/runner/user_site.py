"""The directories in which an interpreter finds modules that code can write: the workspace, and the user site of pip."""

from __future__ import annotations

import os
import site
import sys
from contextlib import contextmanager, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

_BASE = b"PYTHONUSERBASE"
_NOWHERE = b"/dev/null/"
"""No directory can exist below a file."""


def hidden(environment: Mapping[bytes, bytes]) -> Mapping[bytes, bytes]:
    """An environment in which Python finds no user site at its start; :func:`prepare_user_site` has to follow.

    Python would run files there before the first block, and earlier code may have written them.
    """
    return {**environment, _BASE: _NOWHERE + environment.get(_BASE, b"")}


def prepare_user_site() -> None:
    """Let the code import what pip will install for its user. Python itself looks for that directory only at its start."""
    if (base := os.environb.get(_BASE, b"")).startswith(_NOWHERE):
        site.USER_BASE = site.USER_SITE = None
        del os.environb[_BASE]
        if own := base.removeprefix(_NOWHERE):
            os.environb[_BASE] = own
    if not site.ENABLE_USER_SITE:
        return
    place = site.getusersitepackages()
    # Python never looks again for a directory that is missing at the first import
    with suppress(OSError):
        os.makedirs(place, exist_ok=True)
    if place not in sys.path:
        shared = (number for number, path in enumerate(sys.path) if path.endswith("-packages"))
        sys.path.insert(next(shared, len(sys.path)), place)


@contextmanager
def written_by_code_last() -> Generator[None]:
    """A context in which imports prefer the directories that code cannot write."""
    user = site.getusersitepackages() if site.ENABLE_USER_SITE else None
    places = [(number, path) for number, path in enumerate(sys.path) if path in ("", user)]
    for _, path in places:
        sys.path.remove(path)
        sys.path.append(path)
    try:
        yield
    finally:
        # the setup may have changed the rest of the path
        for number, path in places:
            if path in sys.path:
                sys.path.remove(path)
                sys.path.insert(number, path)
