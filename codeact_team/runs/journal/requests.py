"""Requests of a run: who asks for which effect, without credentials, and by a key under which a journal finds it again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Literal, cast

from pydantic import JsonValue

from codeact_team.agents.codeact.attempts import Attempt
from codeact_team.core.aio import to_the_end
from codeact_team.core.component_effects import CodeRun
from codeact_team.core.effects import Effect
from codeact_team.core.places import place_of
from codeact_team.core.process_effects import ProcessEffect
from codeact_team.core.redaction import Redactor
from codeact_team.errors import RecordedError
from codeact_team.runs.journal.blobs import is_light
from codeact_team.runs.journal.seal import Chain


@dataclass
class RepeatedBlock:
    """A recorded block that runs again, to restore its variables.

    Attributes:
        has_strayed: Whether it has asked for something else than before.
    """

    has_strayed: bool = False


@dataclass(frozen=True)
class Caller:
    """The current caller of effects.

    Attributes:
        within: The number of the innermost effect that is under way.
        owner: The innermost block or attempt, and its number: when a run is resumed, it is done again, and asks again.
        repetition: The block that runs again, if one does.
    """

    within: int | None = None
    owner: tuple[Literal["block", "attempt"], int] | None = None
    repetition: RepeatedBlock | None = None


_caller: ContextVar[Caller] = ContextVar("codeact_team_caller", default=Caller())  # noqa: B039


@dataclass(frozen=True)
class Request:
    """One request for an effect.

    Attributes:
        by: The name of the agent, ``@``, and the place in the config of the component that is asked.
        kind: The kind of the effect.
        value: What is asked, with placeholders for credentials.
        caller: The caller.
        key: A digest of all that; of the caller, only the owner counts.
    """

    by: str
    kind: str
    value: JsonValue
    caller: Caller
    key: str

    @property
    def owner(self) -> int | None:
        """The number of the block or attempt that asks."""
        return None if self.caller.owner is None else self.caller.owner[1]

    @property
    def attempt(self) -> int | None:
        """The number of the attempt that asks, if one does by itself and not by its code."""
        return None if self.is_of_block else self.owner

    @property
    def is_of_block(self) -> bool:
        """Whether code asks."""
        return self.caller.owner is not None and self.caller.owner[0] == "block"


def is_recorded(effect: Effect[Any]) -> bool:
    """Whether a journal has an effect, and answers it.

    A process in a sandbox that the config does not have, such as one that a tool has opened, is done again with its tool:
    nothing would bring back what else is in the sandbox.
    """
    return not isinstance(effect, ProcessEffect) or bool(place_of(effect.part))


async def request_of(effect: Effect[Any], redactor: Redactor, chain: Chain | None) -> Request:
    """The request for an effect, made by the current caller; the chain authenticates the journal that has it."""
    by, caller, asked = f"{effect.source}@{place_of(effect.part)}", _caller.get(), effect.request()
    if isinstance(effect, ProcessEffect):
        # variables and input may be secrets that somebody guesses
        hidden = None if chain is None or effect.hidden is None else chain.digest(effect.hidden)
        asked = {**cast("dict[str, JsonValue]", asked), "digest": hidden}

    def make() -> Request:
        value = redactor.redact(asked)
        owner = None if caller.owner is None else caller.owner[1]
        named = json.dumps([by, effect.kind, value, owner], sort_keys=True)
        key = sha256(named.encode(errors="backslashreplace")).hexdigest()[:32]
        return Request(by, effect.kind, value, caller, key)

    return make() if is_light(asked) else await to_the_end(asyncio.to_thread(make))


def recorded_error(recorded: JsonValue, redactor: Redactor) -> RecordedError:
    """An error as a journal has it."""
    error: Any = redactor.restore(recorded)
    return RecordedError(error["text"], type_name=error["type"], status_code=error.get("status"))


@contextmanager
def inside(n: int, effect: Effect[Any]) -> Generator[None]:
    """Within it, the caller is an effect with the number ``n``."""
    caller = _caller.get()
    owner = caller.owner
    if isinstance(effect, CodeRun):
        owner = "block", n
    elif isinstance(effect, Attempt):
        owner = "attempt", n
    with _calling(Caller(n, owner, caller.repetition)):
        yield


@contextmanager
def repeating(n: int) -> Generator[RepeatedBlock]:
    """Within it, the caller is the block with the number ``n``, which runs again."""
    repetition = RepeatedBlock()
    with _calling(Caller(n, ("block", n), repetition)):
        yield repetition


@contextmanager
def _calling(caller: Caller) -> Generator[None]:
    token = _caller.set(caller)
    try:
        yield
    finally:
        _caller.reset(token)


def current_caller() -> Caller:
    """The current caller."""
    return _caller.get()
