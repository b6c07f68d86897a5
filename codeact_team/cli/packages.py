"""``codeact-team packages``."""

from __future__ import annotations

import logging

from codeact_team.cli.json_lines import print_json
from codeact_team.cli.screen import Screen
from codeact_team.errors import EngineError
from codeact_team.packages import Layer, Layers
from codeact_team.sandboxes.docker.engine import at_engine
from codeact_team.sandboxes.docker.volumes import remove_unused_volumes

logger = logging.getLogger(__name__)

_MIB = 1024 * 1024


def packages_command(screen: Screen, *, verify: bool, prune: bool, as_json: bool) -> int:
    """Print the layers of packages, with what was asked for done to each, and return the exit code."""
    layers = Layers()
    code = 0
    screen.work()
    for layer in layers.all():
        told = layer.model_dump(mode="json")
        if verify and (changes := layers.changes(layer, thorough=True)):
            code = 1
            told["changes"] = changes
        if prune:
            told["removed"] = layers.remove(layer)
        if as_json:
            print_json(told)
        else:
            _show(screen, layer, told.get("changes", []), told.get("removed"))
    if prune:
        layers.remove_unfinished()
        _remove_volumes()
    screen.close()
    return code


def _remove_volumes() -> None:
    """Remove what an engine that does not see this machine's files has got of them."""
    try:
        at_engine(remove_unused_volumes)
    except EngineError as error:
        # where none runs, none has any
        logger.debug("no volumes pruned: %s", error)


def _show(screen: Screen, layer: Layer, changes: list[str], removed: bool | None) -> None:
    screen.text(f"{layer.path.name[:12]}  {layer.size / _MIB:.1f} MiB  {layer.interpreter}", "bold")
    screen.text("  " + ", ".join(f"{name} {version}" for name, version in layer.packages.items()))
    if changes:
        screen.text(f"  changed since it was made: {', '.join(changes)}", "red")
    if removed is not None:
        screen.text("  removed" if removed else "  kept: a sandbox uses it", "dim")
