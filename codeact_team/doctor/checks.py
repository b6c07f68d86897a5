"""What an examination finds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class State(StrEnum):
    """Whether something works on this machine."""

    WORKS = "works"
    LIMITED = "limited"
    MISSING = "missing"


@dataclass(frozen=True)
class Check:
    """Something that a team may need."""

    name: str
    state: State
    detail: str
    """What was found and, where it does not work, what to do."""
    packages: Mapping[str, str] | None = field(default=None, hash=False)
    """The Python packages that were found: version by name; ``None`` where nobody looked for any."""


Report = Callable[[Check], object]
