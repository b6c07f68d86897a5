"""A receiver of OTLP over HTTP on a real socket: it takes in what an exporter sends, and decodes it."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Received:
    """A span as it came over the wire.

    Attributes:
        scope: Who made it.
        parent: The id of its parent; ``""`` without one.
        start: In nanoseconds since the epoch, as is ``end``.
        failed: Whether its status is an error; ``said`` is what that says.
    """

    scope: str
    name: str
    id: str
    parent: str
    trace: str
    start: int
    end: int
    attributes: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]]
    failed: bool
    said: str


@dataclass
class Receiver:
    """What has arrived.

    Attributes:
        endpoint: For ``OTEL_EXPORTER_OTLP_ENDPOINT``.
        service: The resource's attributes, of the last request.
        headers: Of each request; ``paths`` are where they went.
        body: All bytes of all requests, decompressed.
        asked: Set by the first request.
    """

    endpoint: str
    spans: list[Received] = field(default_factory=list[Received])
    service: dict[str, Any] = field(default_factory=dict[str, Any])
    headers: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    paths: list[str] = field(default_factory=list[str])
    body: bytes = b""
    asked: threading.Event = field(default_factory=threading.Event)

    def take(self, body: bytes) -> None:
        self.body += body
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            self.service = _values(resource.resource.attributes)
            for scope in resource.scope_spans:
                self.spans += [_received(scope.scope.name, span) for span in scope.spans]


@contextmanager
def receiving(status: int = 200, *, hangs: bool = False) -> Generator[Receiver]:
    """A receiver that answers with a status, or only when it ends."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            receiver.headers.append(dict(self.headers))
            receiver.paths.append(self.path)
            receiver.take(body)
            receiver.asked.set()
            if hangs:
                over.wait()
            self.send_response(status)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    receiver = Receiver(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def _received(scope: str, span: Any) -> Received:
    return Received(
        scope=scope,
        name=span.name,
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        trace=span.trace_id.hex(),
        start=span.start_time_unix_nano,
        end=span.end_time_unix_nano,
        attributes=_values(span.attributes),
        events=[(event.name, _values(event.attributes)) for event in span.events],
        failed=span.status.code == 2,
        said=span.status.message,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in attributes}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return None if kind is None else getattr(value, kind)
