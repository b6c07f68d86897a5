"""The commands ``validate``, ``packages`` and ``doctor``."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from codeact_team.cli.examination import (
    QUICKSTART_NEEDS,
    Check,
    State,
    clean,
    examine,
    examine_config,
    missing_for,
)
from codeact_team.cli.json_lines import print_json
from codeact_team.cli.screen import Screen
from codeact_team.config.components import PlacedComponent
from codeact_team.config.loading import read_config
from codeact_team.config.overrides import ForEvery
from codeact_team.core.providers import Policy
from codeact_team.errors import ConfigError, EngineError, SettingError
from codeact_team.executors.packages.layers import Layer, Layers
from codeact_team.runs.result import explain
from codeact_team.sandbox.docker.creation import remove_unused_volumes
from codeact_team.sandbox.docker.engine import at_engine


def validate_command(
    screen: Screen,
    configs: Sequence[str],
    overrides: Sequence[str | ForEvery],
    policy: Policy,
    *,
    as_json: bool,
) -> int:
    """Check each config, print what is wrong with it, tell what it lacks here, and return the exit code."""
    valid = True
    for config in configs:
        error, parts = _checked(config, overrides, policy)
        valid = valid and error is None
        if as_json:
            problems = [] if error is None else [_for_programs(problem) for problem in error.problems]
            print_json({"config": config, "valid": error is None, "problems": problems})
        elif error is None:
            screen.text(f"✓ {config}", "green")
        else:
            screen.text(f"✗ {config}", "red")
            screen.text(explain(error))
        for check in asyncio.run(missing_for(parts)):
            level = "warning" if check.state is State.MISSING else "note"
            screen.notice(level, f"{config}: {check.detail}")
    return 0 if valid else 2


def _checked(
    config: str, overrides: Sequence[str | ForEvery], policy: Policy
) -> tuple[ConfigError | None, Sequence[PlacedComponent]]:
    try:
        return None, read_config(config, overrides=overrides, policy=policy).tried().parts
    except ConfigError as error:
        return error, ()


def _for_programs(problem: ConfigError) -> dict[str, object]:
    return {"file": problem.file, "line": problem.line, "path": problem.path, "text": explain(problem)}


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


_MARKS = {State.WORKS: ("✓", "green"), State.LIMITED: ("!", "yellow"), State.MISSING: ("✗", "red")}
_WIDTH = 12


def doctor_command(
    screen: Screen,
    config: str | None,
    overrides: Sequence[str | ForEvery],
    policy: Policy,
    *,
    clean: bool,
    as_json: bool,
) -> int:
    """Print what works here, or whether a config can run here, as it is found, and return the exit code."""
    if config is None and overrides:
        raise SettingError("there is no config to change: name one, or leave out the options that change it")
    parts = None if config is None else read_config(config, overrides=overrides, policy=policy).tried().parts
    findings = _Findings(screen, as_json=as_json)
    asyncio.run(_examine(screen, findings, parts, clean_first=clean))
    needed = {QUICKSTART_NEEDS} if parts is None else findings.missing
    return 2 if needed & findings.missing else 0


class _Findings:
    """Prints each finding.

    Attributes:
        missing: Names of what does not work.
    """

    def __init__(self, screen: Screen, *, as_json: bool) -> None:
        self._screen = screen
        self._as_json = as_json
        self.missing: set[str] = set()

    def __call__(self, check: Check) -> None:
        if check.state is State.MISSING:
            self.missing.add(check.name)
        if self._as_json:
            packages = {} if check.packages is None else {"packages": dict(check.packages)}
            print_json({"name": check.name, "state": check.state.value, "detail": check.detail, **packages})
            return
        mark, style = _MARKS[check.state]
        self._screen.text(f"{mark} {check.name.ljust(_WIDTH)}", style, end="")
        self._screen.text(check.detail)
        self._screen.wait()


async def _examine(
    screen: Screen, findings: _Findings, parts: Sequence[PlacedComponent] | None, *, clean_first: bool
) -> None:
    if clean_first:
        await clean(screen.notice)
    screen.wait()
    await (examine(findings) if parts is None else examine_config(parts, findings))
    screen.close()
