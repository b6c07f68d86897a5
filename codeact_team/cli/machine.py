"""The commands ``validate``, ``packages`` and ``doctor``."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from dataclasses import replace

from codeact_team.cli.examination import (
    QUICKSTART_NEEDS,
    Check,
    State,
    examine,
    examine_config,
    missing_for,
    remove_left_behind,
)
from codeact_team.cli.json_lines import print_json
from codeact_team.cli.options import days_ago
from codeact_team.cli.screen import Screen
from codeact_team.config.components import PlacedComponent
from codeact_team.config.loading import read_config
from codeact_team.config.overrides import ForEvery, unset_variables
from codeact_team.core.providers import Policy
from codeact_team.errors import ConfigError, EngineError, SettingError
from codeact_team.executors.packages.layers import Layers
from codeact_team.journal.result import explain
from codeact_team.sandbox.docker.creation import remove_unused_volumes
from codeact_team.sandbox.docker.engine import at_engine

logger = logging.getLogger(__name__)

_MIB = 1024 * 1024
_MARKS = {State.WORKS: ("✓", "green"), State.LIMITED: ("!", "yellow"), State.MISSING: ("✗", "red")}
_WIDTH = 12
_QUICKSTART = "quickstart"

Changes = Sequence[str | ForEvery]


def validate_command(
    screen: Screen, configs: Sequence[str], changes: Changes, policy: Policy, *, as_json: bool
) -> int:
    """Check each config, print its problems and what it lacks here, and return the exit code."""
    valid = True
    for config in configs:
        error, parts = None, ()
        try:
            parts = read_config(config, overrides=changes, policy=policy).tried().parts
        except ConfigError as problem:
            error, valid = problem, False
        if as_json:
            problems = [] if error is None else [_as_json(problem) for problem in error.problems]
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


def _as_json(problem: ConfigError) -> dict[str, object]:
    return {"file": problem.file, "line": problem.line, "path": problem.path, "text": explain(problem)}


def packages_command(
    screen: Screen, *, verify: bool, prune: bool, older_than: float | None, as_json: bool
) -> int:
    """Print the layers of packages, with what was asked for done to each, and return the exit code."""
    layers = Layers()
    code = 0
    screen.work()
    for layer in (kept := layers.all()):
        if older_than is not None and layer.used > days_ago(older_than):
            continue
        shown = layer.model_dump(mode="json")
        if verify and (changes := layers.changes(layer, thorough=True)):
            code = 1
            shown["changes"] = changes
        if prune:
            shown["removed"] = layers.remove(layer)
        if as_json:
            print_json(shown)
            continue
        screen.text(f"{layer.path.name[:12]}  {layer.size / _MIB:.1f} MiB  {layer.interpreter}", "bold")
        screen.text("  " + ", ".join(f"{name} {version}" for name, version in layer.packages.items()))
        if "changes" in shown:
            screen.text(f"  changed since it was made: {', '.join(shown['changes'])}", "red")
        if prune:
            screen.text("  removed" if shown["removed"] else "  kept: a sandbox uses it", "dim")
    if prune:
        remove_rest_of_packages(layers)
    elif older_than is None and not as_json and len(kept) > 1:
        screen.text(f"together {layers.size() / _MIB:.1f} MiB: a wheel that several have is kept once")
    screen.close()
    return code


def remove_rest_of_packages(layers: Layers) -> None:
    """Remove what belongs to no layer: unfinished ones, and copies of an engine that does not see this machine's files. Blocks."""
    layers.remove_unfinished()
    try:
        at_engine(remove_unused_volumes)
    except EngineError as error:
        # where none runs, none has any
        logger.debug("no volumes pruned: %s", error)


def doctor_command(
    screen: Screen, config: str | None, changes: Changes, policy: Policy, *, clean: bool, as_json: bool
) -> int:
    """Print what works here, or whether a config can run here, as it is found, and return the exit code."""
    if config is None and changes:
        raise SettingError("there is no config to change: name one, or leave out the options that change it")
    parts, lacking = None, list[Check]()
    if config is not None:
        parts, lacking = _examinable(config, changes, policy)
    findings = examine() if parts is None else examine_config(parts)
    missing = dict.fromkeys(check.name for check in lacking)

    async def print_findings() -> None:
        if clean:
            await remove_left_behind(screen.notice)
        for check in lacking:
            _print_check(screen, check, as_json=as_json)
        screen.wait()
        async for check in findings:
            if lacking and "${" in check.detail:
                check = replace(check, state=State.MISSING)
            if check.state is State.MISSING:
                missing[check.name] = None
            _print_check(screen, check, as_json=as_json)
        screen.close()

    asyncio.run(print_findings())
    # in the order in which they were found
    lacked = [name for name in missing if config is not None or name == QUICKSTART_NEEDS]
    if not as_json:
        _print_verdict(screen, config or _QUICKSTART, lacked)
    return 2 if lacked else 0


def _print_verdict(screen: Screen, config: str, lacked: Sequence[str]) -> None:
    screen.text("")
    if lacked:
        screen.line((f"── {config} cannot run here ", "bold red"), (f"· it lacks: {', '.join(lacked)}", ""))
    else:
        screen.line((f"── {config} can run here", "bold green"))


def _examinable(
    config: str, changes: Changes, policy: Policy
) -> tuple[Sequence[PlacedComponent], list[Check]]:
    """The components of a config, and what it lacks. A variable that is not set stands in for its value.

    Raises:
        ConfigError: If it is wrong in anything else.
    """
    try:
        return read_config(config, overrides=changes, policy=policy).tried().parts, []
    except ConfigError as error:
        if not (unset := unset_variables(error)):
            raise
        lacking = [Check("config", State.MISSING, explain(problem)) for problem in error.problems]
    environ = os.environ | {name: f"${{{name}}}" for name in unset}
    return read_config(config, overrides=changes, policy=policy, environ=environ).tried().parts, lacking


def _print_check(screen: Screen, check: Check, *, as_json: bool) -> None:
    if as_json:
        packages = {} if check.packages is None else {"packages": dict(check.packages)}
        print_json({"name": check.name, "state": check.state.value, "detail": check.detail, **packages})
        return
    mark, style = _MARKS[check.state]
    name = f"{mark} {check.name.ljust(_WIDTH)}"
    screen.line((name, style), (check.detail, ""), indent=len(name))
    screen.wait()
