"""The nearest valid name, for errors about a wrong one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, others: Iterable[str], *, cutoff: float = 0.6) -> str:
    """A closing half sentence that names the most similar of ``others``, or nothing.

    How similar it has to be, from 0 to 1, is the cutoff.
    """
    near = difflib.get_close_matches(name, list(others), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]!r}?" if near else ""
