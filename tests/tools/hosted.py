"""What tests name by its import path."""

from __future__ import annotations

from typing import Self

from autogen_core import CancellationToken, Component
from autogen_core.tools import BaseTool
from pydantic import BaseModel


def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def undocumented(number: int) -> int:
    return number


class Text(BaseModel):
    text: str


class Shout(BaseTool[Text, Text], Component[Text]):
    """A tool that a config can describe."""

    component_config_schema = Text
    component_provider_override = "hosted.Shout"

    def __init__(self, text: str) -> None:
        super().__init__(Text, Text, "shout", f"Shout, {text}.")
        self._text = text

    async def run(self, args: Text, cancellation_token: CancellationToken) -> Text:
        return Text(text=args.text.upper())

    def _to_config(self) -> Text:
        return Text(text=self._text)

    @classmethod
    def _from_config(cls, config: Text) -> Self:
        return cls(config.text)
