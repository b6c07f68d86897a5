"""The events of parallel attempts in forks of a session; a part of :mod:`codeact_team.core.events`."""

# the name of a class says which of the types it has
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from codeact_team.core.effects import EffectBegan, EffectEnded


@dataclass(kw_only=True)
class ForkBegan(EffectBegan):
    """An agent forks its session, once for each attempt."""

    type: ClassVar[Literal["fork_began"]]
    forks: int


@dataclass(kw_only=True)
class ForkEnded(EffectEnded):
    """A session was forked; if it could not be, ``refusal`` says why, and one attempt is made."""

    type: ClassVar[Literal["fork_ended"]]
    forks: int
    refusal: str | None = None


@dataclass(kw_only=True)
class AttemptBegan(EffectBegan):
    """An agent begins one of several parallel attempts, counted from 1. Events in it have its span as ``parent``."""

    type: ClassVar[Literal["attempt_began"]]
    attempt: int
    attempts: int


@dataclass(kw_only=True)
class AttemptEnded(EffectEnded):
    """An attempt has ended; ``ending`` is ``None`` if ``error`` broke it off."""

    type: ClassVar[Literal["attempt_ended"]]
    attempt: int
    attempts: int
    ending: str | None = None
    error: str | None = None


@dataclass(kw_only=True)
class PromotionBegan(EffectBegan):
    """An agent has chosen an attempt: its variables and files replace the session's."""

    type: ClassVar[Literal["promotion_began"]]
    attempt: int


@dataclass(kw_only=True)
class PromotionEnded(EffectEnded):
    """The other attempts are dropped; ``loss`` is the reason if variables and files are lost."""

    type: ClassVar[Literal["promotion_ended"]]
    attempt: int
    loss: str | None = None
