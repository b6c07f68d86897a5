"""What a shell offers to complete."""

from __future__ import annotations

from glob import escape, glob

from codeact_team.shipped import shipped_configs


def template_names(incomplete: str) -> list[str]:
    """The shipped configs whose names begin so."""
    return [name for name in shipped_configs() if name.startswith(incomplete)]


def config_names(incomplete: str) -> list[str]:
    """The shipped configs, and the folders and the files that may be configs, whose names begin so."""
    begun = escape(incomplete)
    files = [name for name in glob(f"{begun}*") if name.endswith((".yaml", ".yml", ".json"))]
    return [*template_names(incomplete), *sorted([*glob(f"{begun}*/"), *files])]
