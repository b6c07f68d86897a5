"""Limits of processes, and of what the kernel counts for all processes of a user together."""

from __future__ import annotations

import resource

CODE_DESCRIPTORS = 512
"""How many descriptors a process of the code's may have.

Linux refuses to send a descriptor through a socket once its user has more of them in flight than the sender may have open,
and one message adds up to 253. So code has at most 765 in flight, and whoever may have more, can go on.
"""
OWN_DESCRIPTORS = 1024
"""How many a process of ours in a sandbox may have; the programs of a machine may usually have as many."""
PENDING_SIGNALS = 1024
"""How many queued signals and timers the code's user may have: a small part of what this user may have on a machine."""

LOCKED_BYTES = 64 * 1024
"""How much memory the code may keep from being swapped out. What it locks in shared segments counts for its user, and a user of a
machine may usually lock 8 MiB; this is what programs do with that guard a key."""


def limit(what: int, most: int) -> None:
    """Let this process, and all that it starts, have so much of something at most."""
    soft, hard = (
        most if now == resource.RLIM_INFINITY else min(now, most) for now in resource.getrlimit(what)
    )
    resource.setrlimit(what, (soft, hard))
