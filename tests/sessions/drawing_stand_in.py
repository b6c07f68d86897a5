"""What stands in for ``matplotlib.pyplot``: draws in no time, and knows no more of it than the tests ask for."""

from __future__ import annotations

import os
import warnings
from typing import Any

import matplotlib.figure

Figure: Any = matplotlib.figure.Figure

_figures: dict[int, Any] = {}


def figure(number: int | None = None, **settings: Any) -> Any:
    """That of this number, or a new one; the current one from now on."""
    number = max(_figures, default=0) + 1 if number is None else number
    current = _figures.pop(number, None) or Figure(number, **settings)
    # the current one is the last
    _figures[number] = current
    return current


def gcf() -> Any:
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


def subplots(**_: Any) -> tuple[Any, None]:
    return figure(), None


def savefig(*arguments: Any, **settings: Any) -> None:
    gcf().savefig(*arguments, **settings)


def show() -> None:
    if os.environ["MPLBACKEND"] == "Agg":
        warnings.warn("FigureCanvasAgg is non-interactive, and thus cannot be shown", stacklevel=2)
