"""``/undo`` in a chat: what it brings back, and what stays done."""

from __future__ import annotations

from collections.abc import Sequence

from codeact_team.cli.prompts import asked_yes_or_no
from codeact_team.cli.screen import Screen
from codeact_team.journal.undoing import LastInput
from codeact_team.text.visibility import one_line

VARIABLES_ARE_LOST = (
    "all variables are lost, as code that could reach more than its workspace does not run again"
)
"""What becomes of a chat's variables when it is resumed, where its code is not contained."""
_MOST_NAMED = 10
"""Calls, variables or files that are named; the rest is counted."""
_MAX_TEXT = 60
"""Characters of a message that are shown."""
_MAX_CALL = 200


async def agrees_to_undo(screen: Screen, undone: LastInput, *, with_a_person: bool) -> bool:
    """Name the calls of tools that stay done, and ask whether to undo the input all the same, if anybody is there to ask."""
    for call in undone.calls[:_MOST_NAMED]:
        screen.notice("warning", f"{one_line(call, _MAX_CALL)} was called, and stays done", again=True)
    if (more := len(undone.calls) - _MOST_NAMED) > 0:
        screen.notice("warning", f"{more:,} more calls of tools were made, and stay done", again=True)
    if not undone.calls or not with_a_person:
        return True
    return await asked_yes_or_no("Undo the message all the same? y yes, n no > ")


def what_is_undone(undone: LastInput, *, is_contained: bool) -> str:
    """What was undone, in words.

    Args:
        undone: The input.
        is_contained: Whether the code reaches nothing but its workspaces; only then does it run again, to bring back variables.
    """
    lines = [f"the last message is undone: {one_line(undone.text, _MAX_TEXT)}"]
    brought_back = {"variables": undone.names if is_contained else (), "files": undone.files}
    changes = [f"{what} {_named(names)}" for what, names in brought_back.items() if names]
    if changes:
        lines.append(f"restored before other code runs: {'; '.join(changes)}")
    if not is_contained:
        lines.append(f"{VARIABLES_ARE_LOST}; what it did elsewhere stays done")
    return "\n".join(lines)


def _named(names: Sequence[str]) -> str:
    named = ", ".join(one_line(name, _MAX_TEXT) for name in names[:_MOST_NAMED])
    return named if len(names) <= _MOST_NAMED else f"{named} and {len(names) - _MOST_NAMED:,} more"
