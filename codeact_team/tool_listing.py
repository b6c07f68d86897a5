"""Asking which tools there are, as an effect that passes the door: a server may say something else every time."""

from __future__ import annotations

from typing import TypeVar

from pydantic import JsonValue, TypeAdapter

from codeact_team.effects import Effect
from codeact_team.events import ToolsListed

T = TypeVar("T")


class ToolListing(Effect[T]):
    """Workbenches are asked for their tools.

    Args:
        part: The workbench, where it is one.
        form: How pydantic writes what they list as JSON, and reads it.
        asked: What they are called.
        source: The agent that asks, where that is known.
    """

    kind = "tool_listing"

    def __init__(
        self, part: object, form: TypeAdapter[T], asked: list[str], source: str | None = None
    ) -> None:
        self.part = part
        self.form = form
        self._asked = asked
        if source is not None:
            self.source = source

    def request(self) -> JsonValue:
        return {"list": [*self._asked]}

    def began(self, span: int) -> ToolsListed:
        return ToolsListed(span=span, agent=self.source, of=self._asked)

    def ended(self, span: int, outcome: T | None, error: BaseException | None) -> ToolsListed:
        return ToolsListed(span=span, agent=self.source, of=self._asked, is_over=True)
