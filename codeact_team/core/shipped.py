"""The configs that come with this package."""

from __future__ import annotations

from pathlib import Path


def shipped_configs() -> dict[str, Path]:
    """The configs that come with this package, by their bare names."""
    package = Path(__file__).parent.parent
    # in a wheel they are inside the package, in a checkout beside it
    folder = next(
        (each for each in (package / "_configs", package.parent / "configs") if each.is_dir()), None
    )
    return {} if folder is None else {file.stem: file for file in sorted(folder.glob("*.yaml"))}
