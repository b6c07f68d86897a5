"""A request of code to the network, or a connection, as an effect of its run."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue, TypeAdapter

from codeact_team.core.effects import Begin, Effect, End
from codeact_team.core.network_events import RequestBegan, RequestEnded
from codeact_team.core.process_effects import Bytes
from codeact_team.network.control import EgressAsked
from codeact_team.network.names import (
    CONNECT,
    DEFAULT_PORTS,
    SAFE_METHODS,
    authority_of,
    host_and_port,
    split_url,
)
from codeact_team.network.rules import Target

_UNKNOWN = (
    "the run was interrupted while this request was under way: whether it has reached the server is not known, and it was not "
    "sent again; find out before you do"
)


@dataclass(frozen=True)
class RequestOutcome:
    """What became of a request, or of a connection.

    Attributes:
        status: The status of the answer; ``None`` for a connection, or without an answer.
        headers: The headers of the answer, as the code has got them.
        content: The body of the answer, if it is kept.
        is_kept: Whether the answer is kept whole, or the error in its place, so that it can be given again.
        sent: Bytes of the request's body, or of a connection to the host.
        received: Bytes of the answer's body, or of a connection from the host.
        error: Why it has not come to its end, if so.
        is_sent: Whether anything was sent at all.
    """

    status: int | None = None
    headers: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    content: Bytes = b""
    is_kept: bool = True
    sent: int = 0
    received: int = 0
    error: str | None = None
    is_sent: bool = True


def target_of(method: str, url: str) -> Target:
    """What was to be reached, by its method and its URL as :func:`url_of` writes it."""
    if method == CONNECT:
        return Target(*host_and_port(url, None))
    scheme, authority, target = split_url(url)
    return Target(*host_and_port(authority, DEFAULT_PORTS[scheme]), method, target)


def url_of(asked: EgressAsked) -> str:
    """The URL of a request, or ``host:port`` of a connection."""
    if asked.method == CONNECT:
        return authority_of(asked.host, asked.port)
    authority = authority_of(asked.host, asked.port, scheme=asked.scheme)
    return f"{asked.scheme}://{authority}{asked.target}"


class NetworkRequest(Effect[RequestOutcome]):
    """Code sends a request, or connects to a host.

    Args:
        asked: The request.
        part: The executor.
        source: The agent whose code sends it.
        is_repeatable: Whether it may be sent twice, as its rule says.
    """

    kind = "request"
    form = TypeAdapter(RequestOutcome)
    spends = ("requests", "bytes")

    def __init__(self, asked: EgressAsked, part: object, source: str, *, is_repeatable: bool = False) -> None:
        self.part = part
        self.source = source
        self._asked = asked
        self._is_repeatable = is_repeatable or asked.method in SAFE_METHODS
        self._began = time.monotonic()

    def request(self) -> JsonValue:
        asked = self._asked
        return {"method": asked.method, "url": url_of(asked), "body": asked.body}

    def facts(self) -> Mapping[str, JsonValue]:
        return {"body_size": None if self._asked.body is None else self._asked.body_size}

    def facts_at_end(
        self, outcome: RequestOutcome | None, error: BaseException | None
    ) -> Mapping[str, JsonValue]:
        return {"seconds": time.monotonic() - self._began}

    def amounts(self, outcome: RequestOutcome) -> Mapping[str, int]:
        return {"bytes": outcome.sent + outcome.received}

    def unknown(self) -> RequestOutcome | None:
        return None if self._is_repeatable else RequestOutcome(error=_UNKNOWN)

    @classmethod
    def began(cls, begin: Begin) -> RequestBegan:
        return RequestBegan(
            method=begin.request["method"], url=begin.request["url"], body_size=begin.facts["body_size"]
        )

    @classmethod
    def ended(cls, end: End) -> RequestEnded:
        request = end.request
        event = RequestEnded(
            method=request["method"], url=request["url"], error=end.error, seconds=end.facts["seconds"]
        )
        if end.outcome is not None:
            event.status, event.error = end.outcome["status"], end.outcome["error"]
            event.sent, event.received = end.outcome["sent"], end.outcome["received"]
        return event
