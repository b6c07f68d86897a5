"""The configs and the guides that come with this package, and how its extras are installed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def shipped_configs() -> dict[str, Path]:
    """The configs that come with this package, by their bare names."""
    return {file.stem: file for file in _shipped("configs", "*.yaml")}


def shipped_guides() -> dict[str, Path]:
    """The guides that come with this package, Markdown, by their bare names; the tutorial first."""
    return {file.stem: file for file in (*_shipped("docs", "tutorial.md"), *_shipped("docs/guides", "*.md"))}


def install(extras: str) -> str:
    """The command that installs extras of this package, for a person to copy; see :func:`how_to_install` for where."""
    return f"pip install '.[{extras}]'"


def how_to_install(extras: str) -> str:
    """How extras of this package are installed, in words: in a checkout, as no index has it yet."""
    return f"`{install(extras)}` in a checkout"


def _shipped(folder: str, pattern: str) -> Sequence[Path]:
    package = Path(__file__).parent.parent
    # in a wheel they are inside the package, in a checkout beside it
    places = (package / f"_{folder}", package.parent / folder)
    found = next((each for each in places if each.is_dir()), None)
    return () if found is None else sorted(found.glob(pattern))
