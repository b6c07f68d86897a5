"""The terminals that processes are started in: where processes are kept apart, no other can open them.

They all belong to the same user, and the kernel knows no other owner of a terminal. So they are in a directory of their own,
and the Landlock domain of each process has all files but that directory, and in it the terminal of the process. Terminals that
programs make for themselves are elsewhere.
"""

from __future__ import annotations

import fcntl
import os
import sys
from contextlib import suppress

from codeact_team.sandbox.system.kernel import MOVE, PROCESS_TERMINALS, READ_FILE, WRITE_FILE, allow

_NAME, _LOCK = 0x80045430, 0x40045431
"""TIOCGPTN and TIOCSPTLCK; other numbers on a few old architectures, which then have no terminals apart."""
_DEVICES = "/dev"


def open_terminal() -> tuple[int, int]:
    """Make a terminal. Returns its master and its slave. Raises an ``OSError``."""
    flags = os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC
    try:
        master = os.open(f"{PROCESS_TERMINALS}/ptmx", flags)
    except OSError:
        return os.openpty()
    try:
        fcntl.ioctl(master, _LOCK, bytes(4))
        number = int.from_bytes(fcntl.ioctl(master, _NAME, bytes(4)), sys.byteorder)
        return master, os.open(f"{PROCESS_TERMINALS}/{number}", flags)
    except BaseException:
        os.close(master)
        raise


def rights_to_open() -> int:
    """The rights that a Landlock ruleset has to handle to keep terminals apart; 0 where there are none to be kept apart."""
    # without handling moves, a domain refuses to move files from one directory to another
    return READ_FILE | WRITE_FILE | MOVE if os.path.exists(PROCESS_TERMINALS) else 0


def allow_to_open(ruleset: int, rights: int, terminal: str | None) -> None:
    """Allow ``rights`` to all files but the terminals of processes, and to ``terminal``. Raises an ``OSError``."""
    for path in sorted(_shown()):
        # what is mounted may be hidden by another mount
        with suppress(OSError):
            allow(ruleset, path, rights)
    if terminal is not None:
        allow(ruleset, terminal, rights)


def _shown() -> set[str]:
    """What there is at the top of the file system and among the devices, terminals of processes apart."""
    # the sandbox lets nobody list the root, which has nothing but what is mounted there, and own files beside that
    shown: set[str] = set()
    with open("/proc/self/mountinfo", "rb") as mounts:
        for line in mounts:
            # blanks and backslashes are written as octal numbers
            place = os.fsdecode(line.split()[4].decode("unicode_escape").encode("latin-1"))
            depth = 3 if place.startswith(f"{_DEVICES}/") else 2
            shown.add("/".join(place.split("/")[:depth]))
    return shown - {"/", _DEVICES, PROCESS_TERMINALS}
