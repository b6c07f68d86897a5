"""What passes between a driver and its gateway to a Ray cluster: frames with the number of a worker, a kind, and bytes."""

from __future__ import annotations

import asyncio
import struct
from enum import Enum
from typing import NamedTuple

_HEAD = struct.Struct("!IIB")
PIECE = 64 << 10
"""Bytes that are passed on at once; Ray needs no store for up to 100 KiB."""


class Kind(Enum):
    """What a frame is."""

    START = 1
    """To the gateway: start a worker. Back: it has started; the bytes are the address of its node."""
    DATA = 2
    """What the worker is to read, or has written."""
    END = 3
    """To the gateway: end the worker; its input is at its end. Back: there is no such worker any more."""
    LOST = 4
    """From the gateway: the worker is lost; the bytes say how, in words."""
    FAILED = 5
    """From the gateway: no worker can run; the bytes say why, in words."""
    CONNECTED = 6
    """From the gateway: it is connected; the bytes are the number of nodes that take workers."""


class Frame(NamedTuple):
    """A frame; ``worker`` is 0 where it is about none."""

    worker: int
    kind: Kind
    data: bytes = b""

    def encode(self) -> bytes:
        """It as it is sent."""
        return _HEAD.pack(len(self.data), self.worker, self.kind.value) + self.data


async def read(reader: asyncio.StreamReader) -> Frame | None:
    """The next frame; ``None`` at the end."""
    try:
        size, worker, kind = _HEAD.unpack(await reader.readexactly(_HEAD.size))
        return Frame(worker, Kind(kind), await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
