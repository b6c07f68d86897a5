"""The terminals that processes are started in: where processes are kept apart, no other can open them.

They all belong to the same user, and the kernel knows no other owner of a terminal. So they are in a directory of their own,
and the Landlock domain of each process has all files but that directory, and in it the terminal of the process. Terminals that
programs make for themselves are elsewhere.
"""

from __future__ import annotations

import os
from contextlib import suppress

from codeact_team.sandbox.system.kernel import (
    MOVE,
    PROCESS_TERMINALS,
    READ_FILE,
    WRITE_FILE,
    allow,
    checked,
    libc,
)

_DEVICES = "/dev"
_NUMBER = b"tty-index:"
"""Before the number of a terminal, in what the kernel tells of a descriptor of its master."""


def open_terminal() -> tuple[int, int]:
    """Make a terminal. Returns its master and its slave. Raises an ``OSError``."""
    flags = os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC
    try:
        master = os.open(f"{PROCESS_TERMINALS}/ptmx", flags)
    except FileNotFoundError:
        return os.openpty()
    try:
        checked(libc.unlockpt(master))
        # not by ptsname, which knows only one directory of terminals
        with open(f"/proc/self/fdinfo/{master}", "rb") as told:
            [number] = [int(line.removeprefix(_NUMBER)) for line in told if line.startswith(_NUMBER)]
        return master, os.open(f"{PROCESS_TERMINALS}/{number}", flags)
    except BaseException:
        os.close(master)
        raise


def rights_to_open() -> int:
    """The rights that a Landlock ruleset has to handle to keep terminals apart; 0 where there are none to be kept apart."""
    # without handling moves, a domain refuses to move files from one directory to another
    return READ_FILE | WRITE_FILE | MOVE if os.path.exists(f"{PROCESS_TERMINALS}/ptmx") else 0


def allow_to_open(ruleset: int, rights: int, terminal: str | None) -> None:
    """Allow ``rights`` to all files but the terminals of processes, and to ``terminal``. Raises an ``OSError``."""
    for path in sorted(_shown()):
        # what is mounted may be hidden by another mount
        with suppress(OSError):
            allow(ruleset, path, rights)
    if terminal is not None:
        allow(ruleset, terminal, rights)


def _shown() -> set[str]:
    """Return the entries at the top of the file system and among the devices, without the processes' terminals."""
    # the sandbox lets nobody list the root, which has nothing but what is mounted there, and own files beside that
    shown: set[str] = set()
    with open("/proc/self/mountinfo", "rb") as mounts:
        for line in mounts:
            # blanks and backslashes are written as octal numbers
            place = os.fsdecode(line.split()[4].decode("unicode_escape").encode("latin-1"))
            depth = 3 if place.startswith(f"{_DEVICES}/") else 2
            shown.add("/".join(place.split("/")[:depth]))
    return shown - {"/", _DEVICES, PROCESS_TERMINALS}
