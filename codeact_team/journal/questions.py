"""What is asked of the world, in the form in which a journal has it, and by which it is known again."""

from __future__ import annotations

import json
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from typing import Any

from pydantic import JsonValue

from codeact_team.effects import Effect
from codeact_team.errors import RecordedError
from codeact_team.journal.blobs import Blobs
from codeact_team.journal.hidden_values import HiddenValues
from codeact_team.places import place_of

_asking: ContextVar[int | None] = ContextVar("codeact_team_asking", default=None)
"""The number of the entry of the effect that is under way."""
_block: ContextVar[int | None] = ContextVar("codeact_team_block", default=None)
"""The same for blocks only."""


class Questions:
    """Writes down what is asked, without credentials, and with what is large in it beside the journal.

    Args:
        hidden: What must not be written.
        blobs: Where what is large is kept.
    """

    def __init__(self, hidden: HiddenValues, blobs: Blobs) -> None:
        self._hidden = hidden
        self._blobs = blobs

    def asked(self, effect: Effect[Any]) -> dict[str, JsonValue]:
        """What is asked, as an entry has it. Blocks.

        Raises:
            JournalError: If what is large in it cannot be written.
        """
        by = f"{effect.source}@{place_of(effect.part)}"
        asked: dict[str, JsonValue] = {
            "by": by,
            "kind": effect.kind,
            "request": self.packed(effect.request()),
        }
        if (block := _block.get()) is not None:
            asked["block"] = block
        return asked | {"key": _key_of(asked)}

    def packed(self, value: JsonValue) -> JsonValue:
        """A value as an entry has it. Blocks; raises as :meth:`asked`."""
        return self._blobs.pack(self._hidden.hide(value))

    def shown(self, value: JsonValue) -> JsonValue:
        """What was recorded, with the credentials that are known now."""
        return self._hidden.show(value)

    def error(self, recorded: JsonValue) -> RecordedError:
        """An error that was recorded, by the words that it had."""
        told: Any = self.shown(recorded)
        return RecordedError(told["text"], type_name=told["type"], status_code=told.get("status"))


@contextmanager
def inside(n: int, *, is_block: bool) -> Generator[None]:
    """Within it, effects are asked for by the one whose entry has the number ``n``."""
    token = _asking.set(n)
    block = _block.set(n) if is_block else None
    try:
        yield
    finally:
        _asking.reset(token)
        if block is not None:
            _block.reset(block)


def asking() -> int | None:
    """The number of the entry of the effect that is under way, if one is."""
    return _asking.get()


def _key_of(asked: dict[str, JsonValue]) -> str:
    """A digest of who asks what, and in which block."""
    question = [asked["by"], asked["kind"], asked["request"], asked.get("block")]
    return sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:32]
