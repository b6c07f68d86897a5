"""``codeact-team validate``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from codeact_team.cli.json_lines import print_json
from codeact_team.cli.screen import Screen
from codeact_team.config import ForEvery, check_config
from codeact_team.config.components import PlacedComponent
from codeact_team.doctor import State, missing_for
from codeact_team.errors import ConfigError
from codeact_team.providers import Policy
from codeact_team.runs import explain


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
        return None, check_config(config, overrides=overrides, policy=policy)
    except ConfigError as error:
        return error, ()


def _for_programs(problem: ConfigError) -> dict[str, object]:
    return {"file": problem.file, "line": problem.line, "path": problem.path, "text": explain(problem)}
