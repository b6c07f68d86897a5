"""What the proxy and the gateway say to each other.

The proxy asks the gateway about each connection and request, and tells it how each has ended. The gateway decides, and knows
nothing of bytes. Heads of messages travel as text of ISO 8859-1, bodies as they are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar

from codeact_team.core.child_process import Message

if TYPE_CHECKING:
    # without h11, which journals that are read do not need
    from codeact_team.network.http import Headers

EMPTY = hashlib.sha256(b"").hexdigest()
BACKLOG = 1024
"""The most connections of a sandbox that wait until they are taken."""
MOST_KEPT = 1 << 20
"""The most bytes of a body that is kept: the request can be told from others, and the answer be given again."""


@dataclass(frozen=True)
class ControlMessage:
    """A message; ``content`` is a body."""

    kinds: ClassVar[dict[str, type[ControlMessage]]] = {}

    def __init_subclass__(cls) -> None:
        cls.kinds[cls.__name__] = cls

    def to_message(self) -> Message:
        """Write it for a channel."""
        return {"kind": type(self).__name__, **{one.name: getattr(self, one.name) for one in fields(self)}}


def read_message(message: Message) -> ControlMessage:
    """Read what :meth:`ControlMessage.to_message` has written."""
    return ControlMessage.kinds[message.pop("kind")](**message)


def to_text(headers: Headers) -> list[tuple[str, str]]:
    """Write headers as text."""
    return [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]


def from_text(headers: Sequence[Sequence[str]]) -> Headers:
    """Read headers that are text."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]


@dataclass(frozen=True)
class Ready(ControlMessage):
    """To the gateway: the proxy has given up what it does not need, and serves."""


@dataclass(frozen=True)
class EgressOpened(ControlMessage):
    """To the proxy: a sandbox whose connections it takes; its listening socket follows by another way.

    Attributes:
        sandbox: Its number.
        token: What its forwarder says first.
        names: The hosts of its own addresses.
        authority: The key and the certificate that it trusts, as PEM.
        trusted: The certificates by which servers prove themselves, as PEM.
        credentials: As :func:`~.secrets.with_values` writes them.
    """

    sandbox: int
    token: str = field(repr=False)
    names: Mapping[str, str]
    authority: str = field(repr=False)
    trusted: str
    credentials: Sequence[Mapping[str, Any]] = field(repr=False)


@dataclass(frozen=True)
class Closed(ControlMessage):
    """To the proxy: a sandbox is no more, nor are its connections."""

    sandbox: int


@dataclass(frozen=True)
class EgressAsked(ControlMessage):
    """To the gateway: may this be sent?

    Attributes:
        number: The number of the question.
        sandbox: Whose it is.
        unit: The session, fork or process in the sandbox, as its supervisor names it.
        method: The method, or :data:`~.names.CONNECT`.
        scheme: ``http`` or ``https``; empty for a connection.
        host: The host.
        port: Its port.
        target: The path with the query; empty for a connection.
        body: The SHA-256 of the body in hexadecimal digits; ``None`` for one that is longer than what is kept.
        body_size: Its bytes.
    """

    number: int
    sandbox: int
    unit: str
    method: str
    scheme: str
    host: str
    port: int
    target: str = ""
    body: str | None = EMPTY
    body_size: int = 0


@dataclass(frozen=True)
class Refused(ControlMessage):
    """To the gateway: something was refused before any rule was read.

    Attributes:
        sandbox: Whose it was.
        unit: The session, fork or process in the sandbox.
        reason: Why.
    """

    sandbox: int
    unit: str
    reason: str


@dataclass(frozen=True)
class Proceed(ControlMessage):
    """To the proxy: it may be sent, to the first of these addresses that answers."""

    number: int
    addresses: Sequence[str]


@dataclass(frozen=True)
class ReadRequests(ControlMessage):
    """To the proxy: the connection is to be opened, and each request on it is a question of its own."""

    number: int


@dataclass(frozen=True)
class Denied(ControlMessage):
    """To the proxy: it may not be sent."""

    number: int
    reason: str
    status: int = 403


@dataclass(frozen=True)
class Answered(ControlMessage):
    """To the proxy: this is the answer, without sending anything."""

    number: int
    status: int
    headers: Sequence[tuple[str, str]]
    content: bytes = b""


@dataclass(frozen=True)
class EgressEnded(ControlMessage):
    """To the gateway: what became of something that was sent.

    Attributes:
        number: The number of the question.
        status: The status of the answer; ``None`` for a connection, or without an answer.
        headers: The headers of the answer, as the code has got them.
        sent: Bytes that were sent: of the body, or through the connection.
        received: Bytes that came back.
        error: Why it has not come to its end, if so.
        content: The body of the answer, if it is whole.
        is_whole: Whether it was not longer than what is kept.
    """

    number: int
    status: int | None = None
    headers: Sequence[tuple[str, str]] = ()
    sent: int = 0
    received: int = 0
    error: str | None = None
    content: bytes = b""
    is_whole: bool = True


@dataclass(frozen=True)
class Noted(ControlMessage):
    """To the proxy: the end is on record, and the code may get the last of the answer."""

    number: int
