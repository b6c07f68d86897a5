"""Who is asked: any async function, given to an agent or found in the context."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from codeact_team.approval.question import Question


@dataclass(frozen=True)
class Answer:
    """What somebody answered.

    Attributes:
        allowed: Whether it may be done.
        reason: Why, in words for the model; it may be empty.
        always: Whether the same kind of thing is allowed from now on until the agent is reset: this tool with any
            arguments, or all code. What a rule denies stays denied.
    """

    allowed: bool
    reason: str = ""
    always: bool = False


Handler = Callable[[Question], Awaitable[Answer]]
"""Answers questions. An agent asks one at a time, but several agents may ask at once."""

_current: ContextVar[Handler | None] = ContextVar("codeact_team_approval_handler", default=None)


@contextmanager
def asking(handler: Handler) -> Generator[None]:
    """Let ``handler`` be asked by every agent that is run meanwhile and has none of its own."""
    token = _current.set(handler)
    try:
        yield
    finally:
        _current.reset(token)


def current_handler() -> Handler | None:
    """Return whoever is asked in this context, if anybody."""
    return _current.get()
