"""Writes a run down while it happens: its events as a listener, its effects as a handler in the door."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from contextvars import ContextVar
from hashlib import sha256
from pathlib import Path
from typing import Any

from autogen_agentchat.messages import ModelClientStreamingChunkEvent
from pydantic import JsonValue

from codeact_team.effects import Effect, Event, Perform
from codeact_team.events import MessageSent, Output, Words, dump
from codeact_team.journal.blobs import Blobs
from codeact_team.journal.hidden_values import HiddenValues
from codeact_team.journal.log import Log
from codeact_team.journal.run_directory import About, RunDirectory
from codeact_team.places import place_of

_asking: ContextVar[int | None] = ContextVar("codeact_team_asking", default=None)
"""The number of the entry of the effect that is under way."""


class Recorder:
    """Writes the journal of a run. No other process does, until it is closed.

    Each entry has its number ``n`` and the time ``at``, in seconds since the epoch, and one of:

    - ``event``: what was told, as :func:`codeact_team.events.dump` has it. Pieces of what a model or code writes are left
      out: the end of the call has all of it.
    - ``ask``: an effect begins: who asks (``by``), what sort it is (``kind``), what is asked (``request``), a digest of these
      three (``key``), and ``within`` which other effect, by the number of its entry.
    - ``answered``, the number of an ``ask``: what came of it (``outcome``).
    - ``failed``, the number of an ``ask``: the ``error`` that it has raised, with its ``type``.

    Args:
        directory: Where the run is kept.
        hidden: What must not be written.
        sync: Whether each entry is on the disk before the run goes on.
    """

    def __init__(self, directory: RunDirectory, hidden: HiddenValues, *, sync: bool = False) -> None:
        self.directory = directory
        self._hidden = hidden
        self._blobs = Blobs(directory.blobs, sync=sync)
        self._log = Log(directory.lines, sync=sync)
        self._last = 0

    @classmethod
    def create(
        cls, runs: Path, about: About, config: str, credentials: Mapping[str, str], *, sync: bool = False
    ) -> Recorder:
        """Begin the journal of a new run. Blocks.

        Args:
            runs: The directory that gets one for it.
            about: What is known of the run.
            config: Its config, in YAML.
            credentials: What must not be written, each by its name.
            sync: As of the recorder.

        Raises:
            JournalError: If it cannot be written.
        """
        hidden = HiddenValues(credentials, about.nonce)
        about = About.model_validate(hidden.hide(about.model_dump(mode="json")))
        return cls(RunDirectory.create(runs, about, str(hidden.hide(config))), hidden, sync=sync)

    def __call__(self, event: Event) -> None:
        if isinstance(event, Words | Output):
            return
        if isinstance(event, MessageSent) and isinstance(event.message, ModelClientStreamingChunkEvent):
            return
        self._write(event=self._packed(dump(event)))

    async def stand(self, effect: Effect[Any], do: Perform) -> Any:
        """A handler: note what is asked before it is done, and what came of it before anybody knows it.

        Raises:
            JournalError: If that cannot be written. The effect is not performed then, or its outcome is lost.
        """
        within = _asking.get()
        asked = self._write(ask=self._asked(effect) | ({} if within is None else {"within": within}))
        token = _asking.set(asked)
        try:
            outcome = await do()
        except BaseException as error:
            self._write(failed=asked, error=self._packed({"type": _type_of(error), "text": str(error)}))
            raise
        finally:
            _asking.reset(token)
        self._write(answered=asked, outcome=self._packed(effect.dump(outcome)))
        return outcome

    def close(self) -> None:
        """Let others go on with the run. Idempotent."""
        self._log.close()

    def _asked(self, effect: Effect[Any]) -> dict[str, JsonValue]:
        by = f"{effect.source}@{place_of(effect.part)}"
        asked: dict[str, JsonValue] = {
            "by": by,
            "kind": effect.kind,
            "request": self._packed(effect.request()),
        }
        return asked | {"key": key_of(asked)}

    def _packed(self, value: JsonValue) -> JsonValue:
        return self._blobs.pack(self._hidden.hide(value))

    def _write(self, **entry: JsonValue) -> int:
        self._last += 1
        self._log.append({"n": self._last, "at": round(time.time(), 6), **entry})
        return self._last


def key_of(asked: Mapping[str, JsonValue]) -> str:
    """A digest of who asks what, as an entry has it."""
    question = [asked["by"], asked["kind"], asked["request"]]
    return sha256(json.dumps(question, sort_keys=True).encode()).hexdigest()[:32]


def _type_of(error: BaseException) -> str:
    if isinstance(error, asyncio.CancelledError):
        return "CancelledError"
    kind = type(error)
    return f"{kind.__module__}.{kind.__qualname__}"
