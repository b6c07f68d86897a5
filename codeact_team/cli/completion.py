"""What a shell offers to complete."""

from __future__ import annotations

from collections.abc import Iterator
from glob import escape, glob

from codeact_team.shipped import shipped_configs

_CONFIG_FILES = (".yaml", ".yml", ".json")


def template_names(incomplete: str) -> list[str]:
    """The shipped configs whose names begin so."""
    return [name for name in shipped_configs() if name.startswith(incomplete)]


def config_names(incomplete: str) -> list[str]:
    """The shipped configs, and the files that may be configs, whose names begin so."""
    return [*template_names(incomplete), *sorted(_files(incomplete))]


def _files(incomplete: str) -> Iterator[str]:
    for name in glob(f"{escape(incomplete)}*/"):
        yield name
    for name in glob(f"{escape(incomplete)}*"):
        if name.endswith(_CONFIG_FILES):
            yield name
