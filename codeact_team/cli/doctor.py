"""``codeact-team doctor``."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from codeact_team.cli.json_lines import print_json
from codeact_team.cli.screen import Screen
from codeact_team.config import ForEvery, check_config
from codeact_team.config.components import PlacedComponent
from codeact_team.doctor import QUICKSTART_NEEDS, Check, State, clean, examine, examine_config
from codeact_team.errors import SettingError
from codeact_team.providers import Policy

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
    parts = None if config is None else check_config(config, overrides=overrides, policy=policy)
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
