"""``codeact-team doctor``."""

from __future__ import annotations

import asyncio

from codeact_team.cli.json_lines import print_json
from codeact_team.cli.screen import Screen
from codeact_team.runs.machine import QUICKSTART_NEEDS, Check, State, examine
from codeact_team.sandboxes.docker.strays import list_strays, remove

_MARKS = {State.WORKS: ("✓", "green"), State.LIMITED: ("!", "yellow"), State.MISSING: ("✗", "red")}
_WIDTH = 12


def doctor_command(screen: Screen, *, clean: bool, as_json: bool) -> int:
    """Print what works here, as it is found, and return the exit code.

    Raises:
        EngineError: If there is no engine to clean.
    """
    return asyncio.run(_examine(screen, clean=clean, as_json=as_json))


async def _examine(screen: Screen, *, clean: bool, as_json: bool) -> int:
    if clean:
        for stray in await list_strays():
            await remove([stray])
            screen.notice(
                "note", f"removed {stray.name} ({stray.image}, {stray.state}), which {stray.owner} left"
            )
    code = 0
    screen.wait()
    async for check in examine():
        if check.name == QUICKSTART_NEEDS and check.state is State.MISSING:
            code = 2
        if as_json:
            print_json({"name": check.name, "state": check.state.value, "detail": check.detail})
        else:
            _print(screen, check)
            screen.wait()
    screen.close()
    return code


def _print(screen: Screen, check: Check) -> None:
    mark, style = _MARKS[check.state]
    screen.text(f"{mark} {check.name.ljust(_WIDTH)}", style, end="")
    screen.text(check.detail)
