"""Messages of the host: lines of JSON, some of which come with descriptors."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any

_MAX_DESCRIPTORS = 8
_MAX_READ = 1 << 16


class Messages:
    """What comes by a socket."""

    def __init__(self, source: socket.socket) -> None:
        self._source = source
        self._buffer = b""
        self._descriptors: list[int] = []

    def receive(self) -> Iterator[dict[str, Any]]:
        """The messages that are complete with what can be read now. Raises EOFError at the end of the stream."""
        data, descriptors, _, _ = socket.recv_fds(self._source, _MAX_READ, _MAX_DESCRIPTORS)
        for descriptor in descriptors:
            # they come as if they were for programs
            os.set_inheritable(descriptor, False)
        self._descriptors += descriptors
        if not data:
            raise EOFError
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        return map(json.loads, lines)

    def take_descriptors(self, number: int) -> Sequence[int]:
        """Those that have come with the message at hand, for the caller to close."""
        taken, self._descriptors = self._descriptors[:number], self._descriptors[number:]
        return taken
