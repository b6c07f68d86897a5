"""From where an executor that starts may get a sandbox that was started ahead: the supply in whose context it is."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from pathlib import Path
from typing import Protocol

from codeact_team.scope import Startable

_current: ContextVar[Supply | None] = ContextVar("codeact_team_supply", default=None)


class Supply(Protocol):
    """Has sandboxes for executors."""

    async def provide(self, executor: Startable) -> bool:
        """Let an executor take over a sandbox that is ready, if there is one that is as its own would be; whether it has."""
        ...

    async def take_back(self, executor: Startable) -> None:
        """Take over the sandbox of an executor that stops, if others may have it."""
        ...

    async def discard(self, layer: Path | None) -> None:
        """End all sandboxes with these packages, which were changed since they were made."""
        ...


def current_supply() -> Supply | None:
    """What supplies whoever starts here; threads and runtimes may not inherit the context."""
    return _current.get()


@contextmanager
def supplied_by(supply: Supply) -> Generator[None]:
    """Within it, executors that are made or start look there."""
    token = _current.set(supply)
    try:
        yield
    finally:
        _current.reset(token)


def context_of(supply: Supply) -> Context:
    """A context in which there is nothing but this: no door, no scope, and nothing of whoever is at work."""
    context = Context()
    context.run(_current.set, supply)
    return context
