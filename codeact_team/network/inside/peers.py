"""Which processes of a sandbox have made its connections, by what the kernel tells of its sockets and of open files."""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from codeact_team.network.inside.forwarder import Connection

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
"""The second has connections of sockets that are for IPv6, too, as those of Java are."""
_MAPPED = bytes(10) + b"\xff\xff"
_SOCKET = "socket:["
_CHUNK = 1 << 16


def sockets_of(connections: Collection[Connection]) -> dict[Connection, int]:
    """The number of the socket at the other end of each connection, unless that is gone."""
    found: dict[Connection, int] = {}
    for table, prefix in zip(_TABLES, (b"", _MAPPED), strict=True):
        wanted = {
            (_written(prefix, *one.client), _written(prefix, *one.server)): one
            for one in connections
            if one not in found
        }
        if not wanted:
            break
        for line in _read(table).splitlines()[1:]:
            fields = line.split()
            if (connection := wanted.get((fields[1], fields[2]))) is not None and fields[9] != b"0":
                found[connection] = int(fields[9])
    return found


def holders_of(sockets: Collection[int], processes: Iterable[int]) -> tuple[Mapping[int, set[int]], set[int]]:
    """The processes that have each of these sockets open; and those of which that cannot be seen."""
    holders: dict[int, set[int]] = {number: set() for number in sockets}
    hidden: set[int] = set()
    for process in processes:
        place = f"/proc/{process}/fd"
        try:
            names = os.listdir(place)
        except PermissionError:
            hidden.add(process)
            continue
        except OSError:
            continue
        for name in names:
            # it may have been closed
            with suppress(OSError):
                target = os.readlink(f"{place}/{name}")
                if target.startswith(_SOCKET) and (number := int(target[len(_SOCKET) : -1])) in holders:
                    holders[number].add(process)
    return holders, hidden


def _written(prefix: bytes, address: str, port: int) -> bytes:
    """An address as the kernel writes it: numbers of four bytes in the order of the processor."""
    packed = prefix + socket.inet_aton(address)
    words = struct.unpack(f"={len(packed) // 4}I", packed)
    return ("".join(f"{word:08X}" for word in words) + f":{port:04X}").encode()


def _read(path: str) -> bytes:
    pieces: list[bytes] = []
    # a kernel without IPv6 has only one
    with suppress(FileNotFoundError), open(path, "rb", buffering=0) as file:
        while piece := file.read(_CHUNK):
            pieces.append(piece)
    return b"".join(pieces)
