"""``codeact-team validate``."""

from __future__ import annotations

from collections.abc import Sequence

from codeact_team.cli.json_lines import print_json
from codeact_team.cli.screen import Screen
from codeact_team.config import ForEvery, validate_config
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
    """Check each config, print what is wrong with it, and return the exit code."""
    errors = {config: _error(config, overrides, policy) for config in configs}
    for config, error in errors.items():
        if as_json:
            problems = [] if error is None else [_for_programs(problem) for problem in error.problems]
            print_json({"config": config, "valid": error is None, "problems": problems})
        elif error is None:
            screen.text(f"✓ {config}", "green")
        else:
            screen.text(f"✗ {config}", "red")
            screen.text(explain(error))
    return 2 if any(errors.values()) else 0


def _error(config: str, overrides: Sequence[str | ForEvery], policy: Policy) -> ConfigError | None:
    try:
        validate_config(config, overrides=overrides, policy=policy)
    except ConfigError as error:
        return error
    return None


def _for_programs(problem: ConfigError) -> dict[str, object]:
    return {"file": problem.file, "line": problem.line, "path": problem.path, "text": explain(problem)}
