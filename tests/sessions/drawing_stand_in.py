"""What stands in for ``matplotlib.pyplot``: draws in no time, and knows no more of it than the tests ask for.

Its pictures begin as PNG files do, and have a figure's texts and lines in the place of pixels.
"""

from __future__ import annotations

import os
import struct
import warnings
from pathlib import Path
from typing import Any


class Figure:
    """As much of a figure as the tests use."""

    def __init__(self, number: int, figsize: tuple[float, float] = (6.4, 4.8)) -> None:
        self.number = number
        self._size = figsize
        self._drawn: list[Any] = []

    def __repr__(self) -> str:
        width, height = self._pixels()
        return f"<Figure size {width}x{height} with 0 Axes>"

    def set_size_inches(self, *size: float) -> None:
        width, height = size
        self._size = (width, height)

    def add(self, *what: Any) -> list[Any]:
        self._drawn.append(what)
        return [what]

    def clear(self) -> None:
        self._drawn.clear()

    text = suptitle = add

    def savefig(self, fname: Any, *, format: str | None = None, **_: Any) -> None:
        if any("$\\frac{$" in what for what in self._drawn):
            raise ValueError("\n$\\frac{$\n      ^\nExpected an end")
        picture = b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", *self._pixels())
        picture += repr(self._drawn).encode()
        if hasattr(fname, "write"):
            fname.write(picture)
            return
        path = Path(fname)
        (path if path.suffix else path.with_suffix(".png")).write_bytes(picture)

    def _pixels(self) -> tuple[int, int]:
        width, height = self._size
        return int(width * 100), int(height * 100)


_figures: dict[int, Figure] = {}


def figure(number: int | None = None, **settings: Any) -> Figure:
    """That of this number, or a new one; the current one from now on."""
    number = max(_figures, default=0) + 1 if number is None else number
    current = _figures.pop(number, None) or Figure(number, **settings)
    # the current one is the last
    _figures[number] = current
    return current


def gcf() -> Figure:
    return [*_figures.values()][-1] if _figures else figure()


def get_fignums() -> list[int]:
    return sorted(_figures)


def fignum_exists(number: object) -> bool:
    return number in _figures


def close(number: int | None = None) -> None:
    _figures.pop(gcf().number if number is None else number, None)


def clf() -> None:
    gcf().clear()


def plot(*values: Any) -> list[Any]:
    return gcf().add("line", *values)


def title(text: str) -> list[Any]:
    return gcf().add("title", text)


def subplots(**_: Any) -> tuple[Figure, None]:
    return figure(), None


def savefig(*arguments: Any, **settings: Any) -> None:
    gcf().savefig(*arguments, **settings)


def show() -> None:
    if os.environ["MPLBACKEND"] == "Agg":
        warnings.warn("FigureCanvasAgg is non-interactive, and thus cannot be shown", stacklevel=2)
