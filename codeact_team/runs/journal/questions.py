"""What is asked of the world, in a form that is known again, without credentials."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from hashlib import sha256
from typing import Any, Literal

from pydantic import JsonValue

from codeact_team.core.aio import to_the_end
from codeact_team.core.effects import Effect
from codeact_team.core.places import place_of
from codeact_team.core.redaction import Redactor
from codeact_team.errors import RecordedError
from codeact_team.runs.journal.blobs import Blobs, is_light

Owner = Literal["block", "attempt"]

_asking: ContextVar[int | None] = ContextVar("codeact_team_asking", default=None)
"""The number of the entry of the effect that is under way."""
_owner: ContextVar[tuple[Owner, int] | None] = ContextVar("codeact_team_owner", default=None)
"""What everything is asked by that is asked now, as it is done again by itself: the innermost block, or attempt."""


class Questions:
    """Writes down what is asked, without credentials, and with what is large in it beside the journal.

    Args:
        redactor: Replaces credentials by placeholders.
        blobs: Where what is large is kept.
    """

    def __init__(self, redactor: Redactor, blobs: Blobs) -> None:
        self._redactor = redactor
        self._blobs = blobs

    async def asked(self, effect: Effect[Any]) -> dict[str, JsonValue]:
        """What is asked, as an entry has it.

        Raises:
            JournalError: If what is large in it cannot be written.
        """
        by = f"{effect.source}@{place_of(effect.part)}"
        asked: dict[str, JsonValue] = {
            "by": by,
            "kind": effect.kind,
            "request": await self._packed_aside(effect.request()),
        }
        if (owner := _owner.get()) is not None:
            asked[owner[0]] = owner[1]
        return asked | {"key": _key_of(asked)}

    async def _packed_aside(self, value: JsonValue) -> JsonValue:
        if is_light(value):
            return self.packed(value)
        return await to_the_end(asyncio.to_thread(self.packed, value))

    def packed(self, value: JsonValue) -> JsonValue:
        """A value as an entry has it. Blocks, the longer the larger it is; raises as :meth:`asked`."""
        return self._blobs.pack(self._redactor.redact(value))

    def shown(self, value: JsonValue) -> JsonValue:
        """What was recorded, with the credentials that are known now."""
        return self._redactor.restore(value)

    def error(self, recorded: JsonValue) -> RecordedError:
        """An error that was recorded, by the words that it had."""
        told: Any = self.shown(recorded)
        return RecordedError(told["text"], type_name=told["type"], status_code=told.get("status"))


@contextmanager
def inside(n: int, owner: Owner | None = None) -> Generator[None]:
    """Within it, effects are asked for by the one whose entry has the number ``n``; ``owner`` says if it is one."""
    token = _asking.set(n)
    owned = None if owner is None else _owner.set((owner, n))
    try:
        yield
    finally:
        _asking.reset(token)
        if owned is not None:
            _owner.reset(owned)


def asking() -> int | None:
    """The number of the entry of the effect that is under way, if one is."""
    return _asking.get()


def attempting() -> int | None:
    """The number of the entry of the attempt that asks, if one does by itself and not by its code."""
    owner = _owner.get()
    return owner[1] if owner is not None and owner[0] == "attempt" else None


def owner_of(asked: Mapping[str, Any]) -> int | None:
    """The number of the block, or of the attempt, in which something is asked, as an entry has it."""
    return asked.get("block", asked.get("attempt"))


def _key_of(asked: dict[str, JsonValue]) -> str:
    """A digest of who asks what, and in which block or attempt."""
    question = [asked["by"], asked["kind"], asked["request"], owner_of(asked)]
    return sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:32]
