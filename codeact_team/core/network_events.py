"""The events of what code sends to the network; a part of :mod:`codeact_team.core.events`."""

# the name of a class says which of the types it has
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from codeact_team.core.effects import EffectBegan, EffectEnded


@dataclass(kw_only=True)
class RequestBegan(EffectBegan):
    """Code sends a request that a rule allows, or connects to a host.

    Attributes:
        method: The method; ``CONNECT`` for a connection that is passed through unopened.
        url: The URL, without the secrets that the proxy puts in; for a connection, ``host:port``.
        body_size: The bytes of the body; ``None`` if there are more than are kept.
    """

    type: ClassVar[Literal["request_began"]]
    method: str
    url: str
    body_size: int | None = 0


@dataclass(kw_only=True)
class RequestEnded(EffectEnded):
    """A request has got its answer, or a connection has ended.

    Attributes:
        status: The status of the answer; ``None`` for a connection, or without an answer.
        sent: Bytes that were sent: of the body, or through the connection.
        received: Bytes that came back.
        seconds: How long it took.
        error: Why it has not come to its end, if so.
    """

    type: ClassVar[Literal["request_ended"]]
    status: int | None = None
    sent: int = 0
    received: int = 0
    seconds: float = 0.0
    error: str | None = None
