"""The values that blocks have shown, under the names that a notebook has for them: ``_``, ``__``, ``___`` and ``Out``."""

from __future__ import annotations

import builtins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_KEPT = 16
"""The most values that are kept, as each may be large."""


class Outputs(dict[int, "Any"]):
    """The last values by the numbers of their blocks. The names are builtins, so that names of the code come first.

    ``sys.displayhook`` sets ``_``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._number = 0
        builtins.__dict__.update(Out=self, __=None, ___=None)

    def __missing__(self, number: object) -> Any:
        raise KeyError(f"{number}: no value of this block is kept; the last {_KEPT} values are")

    def begin(self, number: int) -> None:
        """A block with this number begins."""
        self._number = number

    def note(self, value: object) -> None:
        """The block shows a value, its last. Not to be called for ``None``, which shows nothing."""
        names = builtins.__dict__
        names["___"], names["__"] = names["__"], names.get("_")
        self[self._number] = value
        if len(self) > _KEPT:
            del self[next(iter(self))]
