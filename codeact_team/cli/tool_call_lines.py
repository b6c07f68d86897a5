"""Calls of tools, each told in a short line as it begins and as it ends."""

from __future__ import annotations

from codeact_team.events import BlockBegan, BlockEnded, ToolCallBegan, ToolCallEnded
from codeact_team.execution import CallOutcome

_MAX_CALLS = 20
"""How many calls are told of a block; the rest is counted."""
_MAX_TEXT = 60
"""Characters of a call's arguments, or of its error."""


class ToolCallLines:
    """Finds the lines for the calls that code makes; a tool that AutoGen's own agents call has messages of AutoGen's."""

    def __init__(self) -> None:
        self._blocks: dict[int, int] = {}
        """How many calls each block has made that is running."""
        self._calls: set[int] = set()
        """Spans of the calls under way that are told."""

    def line(self, event: BlockBegan | BlockEnded | ToolCallBegan | ToolCallEnded) -> tuple[str, str] | None:
        """What to print of an event, and in which style; ``None`` for nothing."""
        match event:
            case BlockBegan():
                self._blocks[event.span] = 0
            case BlockEnded():
                if (more := self._blocks.pop(event.span, 0) - _MAX_CALLS) > 0:
                    return f"[... {more} more calls are not shown ...]", "dim"
            case ToolCallBegan():
                if event.parent not in self._blocks:
                    return None
                self._blocks[event.parent] += 1
                if self._blocks[event.parent] <= _MAX_CALLS:
                    self._calls.add(event.span)
                    return f"→ tools.{event.name} {_short(event.arguments)}", "dim"
            case ToolCallEnded():
                if event.span in self._calls:
                    self._calls.remove(event.span)
                    return _ended(event)
        return None


def _ended(event: ToolCallEnded) -> tuple[str, str]:
    if event.outcome is CallOutcome.OK:
        return f"✓ tools.{event.name} · {event.seconds:.1f} s", "dim"
    how = event.outcome.value.replace("_", " ")
    why = f": {_short(event.error)}" if event.error else ""
    return f"✗ tools.{event.name} · {how}{why} · {event.seconds:.1f} s", "dim red"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_TEXT else f"{line[:_MAX_TEXT]}..."
