"""Users that belong to one sandbox each.

Linux counts descriptors in flight, pending signals, inotify watches and the pages of pipes for each user, so sandboxes
of one user could use up each other's.
"""

from __future__ import annotations

import os

USER_NAME = "sandbox"
"""The name of the user of code, where that has one."""
# free by systemd's list of user ids, https://systemd.io/UIDS-GIDS
_OF_A_MACHINE = range(0x7000_0000, 0x8000_0000)
# within the 65,536 that a user namespace usually has, above those that images usually give to users
_OF_A_NAMESPACE = range(20_000, 60_000)


def private_user(*, in_namespace: bool = False) -> int:
    """A random id, of a user and a group, that no other sandbox of this machine is likely to have.

    Args:
        in_namespace: Whether it is one of a user namespace that has only 65,536 of them.
    """
    users = _OF_A_NAMESPACE if in_namespace else _OF_A_MACHINE
    return users[int.from_bytes(os.urandom(8), "big") % len(users)]


def maps_all_users() -> bool:
    """Whether this process can become any user of a machine, as it is in no user namespace that has only some of them."""
    try:
        with open("/proc/self/uid_map") as lines:
            ranges = [[*map(int, line.split())] for line in lines]
    except OSError:
        return False
    return any(first <= _OF_A_MACHINE[0] and first + count > _OF_A_MACHINE[-1] for first, _, count in ranges)


def is_private(uid: int) -> bool:
    """Whether an id can be a sandbox's."""
    return uid in (_OF_A_MACHINE if maps_all_users() else _OF_A_NAMESPACE)


def is_root(user: str) -> bool:
    """Whether a user, or a user and its group as ``user:group``, is root."""
    return user.partition(":")[0] in ("0", "root")
