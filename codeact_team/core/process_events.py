"""The events of processes that a program runs in a sandbox; a part of :mod:`codeact_team.core.events`."""

# the name of a class says which of the types it has
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from codeact_team.core.effects import EffectBegan, EffectEnded


@dataclass(kw_only=True)
class ProcessBegan(EffectBegan):
    """A program runs, or starts, a process in the sandbox of an executor.

    Attributes:
        argv: The program and its arguments.
        cwd: Its directory, as it was given.
        is_job: Whether it runs while other things happen.
        variables: The names of the environment variables that it gets beside the sandbox's own.
        input_size: The number of bytes that it reads from stdin, if that is known.
    """

    type: ClassVar[Literal["process_began"]]
    argv: Sequence[str]
    cwd: str | None = None
    is_job: bool = False
    variables: Sequence[str] = ()
    input_size: int | None = None


@dataclass(kw_only=True)
class ProcessEnded(EffectEnded):
    """A process has ended, or was closed.

    Attributes:
        returncode: Its exit code, negative for a signal; ``None`` if it has none that is known.
        limit: The limit of the sandbox that it ran into.
        error: Why it could not start, was ended, or its end is not known.
    """

    type: ClassVar[Literal["process_ended"]]
    returncode: int | None = None
    limit: str | None = None
    error: str | None = None
