"""A tool, and a person, who wait until the file ``go`` is there, and make something of it where they are cancelled."""

from __future__ import annotations

import asyncio
from pathlib import Path

from codeact_team.tools.approval_rules import Question
from codeact_team.tools.approvals import Answer


async def order() -> str:
    """Order something."""
    return "ordered" if await _told_to_go() else "not ordered"


async def decide(question: Question) -> Answer:
    """Says yes, in its own time."""
    return Answer(await _told_to_go(), "nobody knows")


async def _told_to_go() -> bool:
    if _may_go():
        return True
    try:
        return await asyncio.get_running_loop().create_future()
    except asyncio.CancelledError:
        return False


def _may_go() -> bool:
    Path("begun").touch()
    return bool(Path("go").read_text())
