"""The effects that are under way, one within the other: who asks for an effect."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

from codeact_team.agents.codeact.attempts import Attempt
from codeact_team.core.component_effects import CodeRun
from codeact_team.core.effects import Effect

Owner: TypeAlias = tuple[Literal["block", "attempt"], int]
"""A block or an attempt, and its number: when a run is resumed, it is done again, and asks again."""


@dataclass(eq=False)
class CallFrame:
    """An effect that is under way, and may ask for others.

    Attributes:
        effect: The effect; ``None`` for a recorded block that runs again, to restore its variables.
        caller: The effect within which this one was asked for.
        n: Its number, once it is recorded.
        strayed: What a block that runs again has asked for that it did not before, in words; hostile data.
    """

    effect: Effect[Any] | None
    caller: CallFrame | None
    n: int | None = None
    strayed: str | None = None

    @property
    def callers(self) -> Iterator[CallFrame]:
        """The effects within which this one was asked for, from the innermost to the outermost."""
        caller = self.caller
        while caller is not None:
            yield caller
            caller = caller.caller

    @property
    def within(self) -> int | None:
        """The number of the innermost recorded effect within which it was asked for."""
        return next((caller.n for caller in self.callers if caller.n is not None), None)

    @cached_property
    def owner(self) -> Owner | None:
        """The innermost block or attempt that asks."""
        for caller in self.callers:
            if caller.n is not None and (caller.effect is None or isinstance(caller.effect, CodeRun)):
                return "block", caller.n
            if caller.n is not None and isinstance(caller.effect, Attempt):
                return "attempt", caller.n
        return None

    @property
    def repetition(self) -> CallFrame | None:
        """The block that asks, if it runs again."""
        return next((caller for caller in self.callers if caller.effect is None), None)


_current: ContextVar[CallFrame | None] = ContextVar("codeact_team_call", default=None)


@contextmanager
def calling(effect: Effect[Any] | None, n: int | None = None) -> Generator[CallFrame]:
    """Within it, an effect is under way; without one, the block with the number ``n``, which runs again."""
    call = CallFrame(effect, _current.get(), n)
    token = _current.set(call)
    try:
        yield call
    finally:
        _current.reset(token)
