"""Tells the directories of runs that are kept, which no code may read, from all else that a person gives to code."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from codeact_team.system.named_paths import THROUGH, open_named

_PARTS: Mapping[str, re.Pattern[bytes]] = {
    "run.json": re.compile(rb'\{\s*"format":\s*\d+,\s*"id":'),
    "journal.jsonl": re.compile(rb'\{"n":\d+,"at":'),
}
"""What is in the directory of a run, whatever its own name, and how that begins; what was damaged may lack the one or the other."""
_BEGINNING = 256
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def is_of_a_run(directory: int) -> bool:
    """Whether the directory that is open is that of a run, as far as there is anything left of that."""
    begins = {name: _beginning(directory, name) for name in _PARTS}
    there = [name for name, beginning in begins.items() if beginning is not None]
    return len(there) == len(_PARTS) or any(_PARTS[name].match(begins[name] or b"") for name in there)


def run_above(path: str) -> str | None:
    """The directory of a run that something is in, however deep; ``None`` if it is in none.

    Raises:
        OSError: As :func:`open_named`.
    """
    above = os.path.dirname(path.rstrip("/")) or "."
    here, name = open_named(above, THROUGH), os.path.realpath(above)
    try:
        while not is_of_a_run(here):
            outer = os.open("..", THROUGH, dir_fd=here)
            is_top = os.path.samestat(os.fstat(outer), os.fstat(here))
            os.close(here)
            here, name = outer, os.path.dirname(name)
            if is_top:
                return None
        return name
    finally:
        os.close(here)


def _beginning(directory: int, name: str) -> bytes | None:
    """How a file begins; ``None`` if it is not there, and nothing if it cannot be read."""
    try:
        descriptor = os.open(name, _READ, dir_fd=directory)
    except FileNotFoundError:
        return None
    except OSError:
        return b""
    try:
        return os.pread(descriptor, _BEGINNING, 0)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
