"""What blocks were, and the values that they have shown, under the names of a notebook: ``In``, ``Out``, ``_``, ``__`` and ``_7``."""

from __future__ import annotations

import builtins

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_KEPT = 16
"""The most values that are kept, as each may be large."""
_KEPT_SOURCES = 1000


class Outputs(dict[int, "Any"]):
    """The last values by the numbers of their blocks. The names are builtins, so that names of the code come first.

    ``sys.displayhook`` sets ``_``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._number = 0
        self._sources = [""]
        builtins.__dict__.update(In=self._sources, Out=self, __=None, ___=None)

    def __missing__(self, number: object) -> Any:
        raise KeyError(f"{number}: no value of this block is kept; the last {_KEPT} values are")

    def begin(self, number: int, code: str) -> None:
        """A block with this number begins. Of numbers between it and the last one, there is no source."""
        self._number = number
        self._sources += [""] * (number - len(self._sources))
        self._sources[number:] = [code]
        if number >= _KEPT_SOURCES:
            self._sources[number - _KEPT_SOURCES] = ""

    def note(self, value: object) -> None:
        """The block shows a value, its last. Not to be called for ``None``, which shows nothing."""
        names = builtins.__dict__
        names["___"], names["__"] = names["__"], names.get("_")
        self[self._number] = names[f"_{self._number}"] = value
        if len(self) > _KEPT:
            oldest = next(iter(self))
            del self[oldest]
            names.pop(f"_{oldest}", None)
