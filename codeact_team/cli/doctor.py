"""``codeact-team doctor``."""

from __future__ import annotations

import asyncio

from codeact_team.cli.json_lines import print_json
from codeact_team.cli.screen import Screen
from codeact_team.doctor import QUICKSTART_NEEDS, Check, State, clean, examine

_MARKS = {State.WORKS: ("✓", "green"), State.LIMITED: ("!", "yellow"), State.MISSING: ("✗", "red")}
_WIDTH = 12


def doctor_command(screen: Screen, *, clean: bool, as_json: bool) -> int:
    """Print what works here, as it is found, and return the exit code."""
    return asyncio.run(_examine(screen, clean_first=clean, as_json=as_json))


async def _examine(screen: Screen, *, clean_first: bool, as_json: bool) -> int:
    code = 0

    def show(check: Check) -> None:
        nonlocal code
        if check.name == QUICKSTART_NEEDS and check.state is State.MISSING:
            code = 2
        if as_json:
            print_json({"name": check.name, "state": check.state.value, "detail": check.detail})
            return
        mark, style = _MARKS[check.state]
        screen.text(f"{mark} {check.name.ljust(_WIDTH)}", style, end="")
        screen.text(check.detail)
        screen.wait()

    if clean_first:
        await clean(screen.notice)
    screen.wait()
    await examine(show)
    screen.close()
    return code
