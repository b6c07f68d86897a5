"""The events of what code sends to the network; a part of :mod:`codeact_team.core.events`."""

# the name of a class says which of the types it has
# pyright: reportIncompatibleVariableOverride=false

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from codeact_team.core.effects import EffectBegan, EffectEnded, Event
from codeact_team.text.amounts import size_of
from codeact_team.text.visibility import cut

_MOST_OF_URL = 120
"""Characters of a URL that a person is told."""
_PASSED_THROUGH = "CONNECT"


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

    @property
    def is_connection(self) -> bool:
        """Whether it is a connection that is passed through, and may last."""
        return self.method == _PASSED_THROUGH


@dataclass(kw_only=True)
class RequestEnded(EffectEnded):
    """A request has got its answer, or a connection has ended.

    Attributes:
        method: The method, as at the begin.
        url: The URL, as at the begin.
        status: The status of the answer; ``None`` for a connection, or without an answer.
        sent: Bytes that were sent: of the body, or through the connection.
        received: Bytes that came back.
        seconds: How long it took.
        error: Why it has not come to its end, if so.
    """

    type: ClassVar[Literal["request_ended"]]
    method: str = ""
    url: str = ""
    status: int | None = None
    sent: int = 0
    received: int = 0
    seconds: float = 0.0
    error: str | None = None

    @property
    def told(self) -> str:
        """The request and what came of it, in a line."""
        sent = f"{size_of(self.sent)} sent, " if self.sent else ""
        parts = [
            f"{self.method} {cut(self.url, _MOST_OF_URL)}",
            *([] if self.status is None else [str(self.status)]),
            *([] if self.error is None else [self.error]),
            f"{sent}{size_of(self.received)} received",
            f"{self.seconds:.1f} s",
        ]
        return " · ".join(parts)

    @property
    def has_failed(self) -> bool:
        """Whether it has no answer, or one that says that something is wrong."""
        return self.error is not None or (self.status or 0) >= 400


@dataclass(kw_only=True)
class RequestDenied(Event):
    """Code has asked for a host, and was denied it; of each host once in a block.

    Attributes:
        agent: Whose code it was.
        host: The host; ``None`` if its name, or the request, is none that rules may see.
        port: Its port.
        reason: Why.
        entry: The entry of ``egress``, in YAML, that would allow the host, if no rule is for it.
    """

    type: ClassVar[Literal["request_denied"]]
    agent: str = ""
    host: str | None = None
    port: int | None = None
    reason: str
    entry: str | None = None

    @property
    def told(self) -> str:
        """The denial in a line."""
        if self.host is None:
            return self.reason
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port} is denied: {self.reason}"
