"""Domains of Landlock: what a process, and all that it starts, may reach. Linux only."""

from __future__ import annotations

import os
import stat
import struct

from codeact_team.sandbox.system.kernel import checked, syscall

# the same numbers on every architecture
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1

EXECUTE, READ_FILE, READ_DIRECTORY = 1 << 0, 1 << 2, 1 << 3
MOVE = 1 << 13
"""Files from one directory to another: a domain that does not mention it refuses that."""
_WRITE_FILE, _TRUNCATE, _CONTROL_DEVICES = 1 << 1, 1 << 14, 1 << 15
ALL_OF_FILES = (1 << 16) - 1
_OF_A_FILE = EXECUTE | READ_FILE | _WRITE_FILE | _TRUNCATE | _CONTROL_DEVICES
"""What means something for a file; the rest is about directories."""
ALL_OF_TCP = 3
ABSTRACT_SOCKETS, SIGNALS = 1 << 0, 1 << 1
"""To processes that are not in the domain."""

ABI_OF_MOVES, ABI_OF_SCOPES = 2, 6


def abi() -> int:
    """The version that this kernel has, which says what a domain can be about; less than 1 without any."""
    return syscall(_CREATE_RULESET, 0, 0, _VERSION)


def make_ruleset(files: int, *, tcp: int = 0, scopes: int = 0) -> int:
    """The descriptor of a set of rules for a domain, where all of this is refused that no rule allows.

    Args:
        files: What may be done with files.
        tcp: What may be done with TCP. From the fourth version on.
        scopes: What is refused without exception. From the sixth version on.

    Raises:
        OSError: If this kernel knows less than that.
    """
    attributes = struct.pack("=QQQ", files, tcp, scopes)
    size = len(attributes) if scopes else 16 if tcp else 8
    return checked(syscall(_CREATE_RULESET, attributes, size, 0))


def allow(ruleset: int, path: str, access: int) -> None:
    """Add a rule for what is at a path, and below it. Raises an ``OSError`` where that cannot be."""
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            access &= _OF_A_FILE
        checked(syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", access, place), 0))
    finally:
        os.close(place)


def enter(ruleset: int) -> None:
    """Be in a domain of these rules from now on. Raises an ``OSError`` if that cannot be."""
    checked(syscall(_RESTRICT_SELF, ruleset, 0))
