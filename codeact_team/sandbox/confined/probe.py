"""Runs confined: tries what confinement must refuse, and prints which restrictions hold."""

from __future__ import annotations

import json
import os
import resource
import socket
import stat
import sys
from collections.abc import Callable

_OUTSIDE, _OUTSIDE_6 = ("192.0.2.1", 9), ("2001:db8::1", 9)
"""Addresses that are nobody's. To connect datagrams to them sends nothing: it finds out whether there is a way."""


def main(outside: str, port: int, host: int) -> None:
    """Try everything, on what ``sandbox._probe_targets`` has made, and the process of the host."""
    secret = os.path.join(outside, "secret")
    attempts: dict[str, list[Callable[[], object]]] = {
        "reads": [
            lambda: open(secret),
            lambda: os.listdir(outside),
            lambda: open(f"/proc/{os.getppid()}/environ"),
        ],
        "writes": [
            lambda: open(os.path.join(outside, "new"), "w"),
            lambda: os.chmod(secret, 0o600),
            lambda: os.truncate(secret, 0),
            lambda: os.unlink(secret),
        ],
        "network": [
            # also where the machine itself has no other network than this
            lambda: socket.create_connection(("127.0.0.1", port)),
            lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(_OUTSIDE),
            lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM).connect(_OUTSIDE_6),
            lambda: socket.socket(getattr(socket, "AF_NETLINK", 0), socket.SOCK_RAW),
            lambda: socket.socket(socket.AF_UNIX).connect(os.path.join(outside, "socket")),
            lambda: socket.socket(socket.AF_UNIX).connect("\0" + outside),
        ],
        "other processes": [
            lambda: os.kill(host, 0),
            lambda: resource.prlimit(host, resource.RLIMIT_CORE) if sys.platform == "linux" else None,
        ],
        "set-id modes": [
            lambda: os.open(_new_file(), os.O_WRONLY | os.O_CREAT, stat.S_ISUID | 0o700),
            lambda: os.mknod(_new_file(), stat.S_IFREG | stat.S_ISUID | 0o700),
            lambda: os.chmod(os.environ["TMPDIR"], stat.S_ISGID | 0o700),
        ],
    }
    json.dump([what for what, actions in attempts.items() if all(map(_refused, actions))], sys.stdout)


def _new_file() -> str:
    return os.path.join(os.environ["TMPDIR"], os.urandom(8).hex())


def _refused(action: Callable[[], object]) -> bool:
    try:
        action()
    except OSError:
        return True
    return False


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
